"""Random recursive queries: what can be reached in a graph, and what hangs below what in a forest.

Any two integer columns of a table are the edges. Reachability uses UNION and ends because there are finitely many
values; the walk over a forest uses UNION ALL and ends because every step must lead to a greater number.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.oracle.context import Context, Query, Source
from tests.oracle.expressions import predicate, usable
from tests.oracle.joins import item
from tests.oracle.values import Col

DEEPEST = 4


def reachable(ctx: Context, over: Callable[[Context, Source], Query]) -> Query:
    """WITH RECURSIVE, and a block that reads it."""
    tables = [s for s in ctx.sources if len(usable(s.columns, "int")) >= 2] or list(ctx.sources)
    table = ctx.pick([s for s in tables if usable(s.columns, "int")] or tables)
    if not usable(table.columns, "int"):
        return over(ctx, table)
    name = ctx.name("r")
    first, second = item(table, "x0"), item(table, "x1")
    numbers = usable(table.columns, "int")
    source, target = numbers[0].sql, ctx.pick(numbers[1:] or numbers).sql
    start = f" WHERE {predicate(ctx.draw, first.scope, 0)}" if ctx.chance(70) else ""
    unique: tuple[str, ...] | None = ("c0", "c1")
    columns = [Col("c0", "int"), Col("c1", "int")]
    match ctx.pick(["reach", "forest", "pairs", "steps"]):
        case "pairs":
            body = (
                f"SELECT x0.{source}, x0.{target} FROM {first.sql}{start} UNION "
                f"SELECT {name}.c0, x1.{target} FROM {name} JOIN {second.sql} ON x1.{source} = {name}.c1"
            )
        case "forest":
            body = (
                f"SELECT x0.{source}, 0 FROM {first.sql}{start} UNION ALL "
                f"SELECT x1.{source}, {name}.c1 + 1 FROM {name} JOIN {second.sql} ON x1.{target} = {name}.c0 "
                f"WHERE x1.{target} < x1.{source} AND {name}.c1 < {DEEPEST}"
            )
            unique = None
        case "steps":
            body = (
                f"SELECT x0.{source}, 0 FROM {first.sql}{start} UNION "
                f"SELECT x1.{target}, {name}.c1 + 1 FROM {name}, {second.sql} "
                f"WHERE x1.{source} = {name}.c0 AND {name}.c1 < {DEEPEST}"
            )
        case _:
            body = (
                f"SELECT x0.{source} FROM {first.sql}{start} UNION "
                f"SELECT x1.{target} FROM {name} JOIN {second.sql} ON x1.{source} = {name}.c0"
            )
            columns, unique = [Col("c0", "int")], ("c0",)
    names = ", ".join(c.sql for c in columns)
    main = over(ctx, Source(name, columns, unique))
    return Query(f"WITH RECURSIVE {name}({names}) AS ({body}) {main.sql}", main.columns, main.unique)
