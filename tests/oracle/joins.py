"""Random FROM clauses: joins of every kind over tables, subqueries and stream tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from tests.oracle.context import Context, Source, firm
from tests.oracle.expressions import COMPARISONS, Scope, comparable, predicate, usable
from tests.oracle.values import INTEGERS, TIMES, Col, constant


@dataclass
class FromClause:
    """The text of a FROM clause and what is visible behind it."""

    sql: str
    scope: list[Col]
    unique: tuple[str, ...] | None = None
    """Columns that together tell any two rows apart, where that is known."""
    crossed: bool = False
    """Whether there is a product in it: one is enough."""
    joined: bool = False
    conditions: list[str] = field(default_factory=list)
    """What WHERE has to say about a comma in FROM."""

    def total(self) -> list[Col]:
        """Columns whose values leave no two different rows in doubt, as far as firm columns can."""
        columns = firm(self.scope)
        if self.unique is not None:
            found = [c for u in self.unique for c in columns if c.sql == u]
            if found and len(found) == len(self.unique):
                return found
        return columns


NextSource = Callable[[], Source]


def from_clause(ctx: Context, source: NextSource, most: int) -> FromClause:
    """One item, or a tree of joins over up to `most`, or two of them with a comma between."""
    size, aliases = ctx.number(1, most), count()
    if size == 1 or not ctx.chance(8):
        return _tree(ctx, source, size, aliases)
    left, right = _tree(ctx, source, size - 1, aliases), _tree(ctx, source, 1, aliases)
    condition, _ = _condition(ctx, left.scope, right.scope, "JOIN", may_cross=False)
    clause = _joined(left, right, f"{left.sql}, {right.sql}", crossed=left.crossed)
    return replace(clause, conditions=[condition])


def _tree(ctx: Context, source: NextSource, size: int, aliases: count[int]) -> FromClause:
    if size == 1:
        return item(source(), ctx.alias(next(aliases)))
    right_size = 2 if size > 2 and ctx.chance(30) else 1
    left = _tree(ctx, source, size - right_size, aliases)
    right = _tree(ctx, source, right_size, aliases)
    kind = ctx.pick(["JOIN", "JOIN", "LEFT JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
    crossed = left.crossed or right.crossed
    if kind == "CROSS JOIN" and not crossed:
        return _joined(left, right, f"{left.sql} CROSS JOIN {_grouped(right)}", crossed=True)
    kind = "JOIN" if kind == "CROSS JOIN" else kind
    if right_size == 1:
        merged = _merging(ctx, left, right, kind, size)
        if merged is not None:
            return merged
    condition, keyed = _condition(ctx, left.scope, right.scope, kind, may_cross=not crossed)
    return _joined(left, right, f"{left.sql} {kind} {_grouped(right)} ON {condition}", crossed=crossed or not keyed)


def _joined(left: FromClause, right: FromClause, sql: str, *, crossed: bool) -> FromClause:
    # A padded row has NULLs for the other side's columns, and there is only one such row: still told apart.
    unique = left.unique + right.unique if left.unique is not None and right.unique is not None else None
    return FromClause(sql, left.scope + right.scope, unique, crossed, joined=True)


def _merging(ctx: Context, left: FromClause, right: FromClause, kind: str, size: int) -> FromClause | None:
    """USING and NATURAL, where names and kinds allow it."""
    shared = _shared(left.scope, right.scope)
    if not shared or not ctx.chance(18):
        return None
    crossed = left.crossed or right.crossed
    names = {_name(c) for c in left.scope} & {_name(c) for c in right.scope}
    if size == 2 and names == set(shared) and ctx.chance(35):
        return _joined(left, right, f"{left.sql} NATURAL {kind} {right.sql}", crossed=crossed)
    using = ctx.several(shared, 1, 2)
    clause = _joined(left, right, f"{left.sql} {kind} {right.sql} USING ({', '.join(using)})", crossed=crossed)
    if size == 2 and ctx.chance(50):
        kind_of = {_name(c): c.kind for c in left.scope}
        clause.scope.append(Col(using[0], kind_of[using[0]]))
    return clause


def _name(column: Col) -> str:
    return column.sql.partition(".")[2]


def _shared(left: Scope, right: Scope) -> list[str]:
    """Names that stand for one column on either side, of the same kind."""
    names = [_name(c) for c in left]
    once = {_name(c): c.kind for c in usable(left) if names.count(_name(c)) == 1}
    mine = {_name(c): c.kind for c in usable(right)}
    return [n for n, kind in once.items() if mine.get(n) == kind]


def _grouped(clause: FromClause) -> str:
    return f"({clause.sql})" if clause.joined else clause.sql


def item(source: Source, alias: str) -> FromClause:
    """One item of FROM under its alias."""
    unique = tuple(f"{alias}.{u}" for u in source.unique) if source.unique is not None else None
    return FromClause(f"{source.sql} {alias}", [replace(c, sql=f"{alias}.{c.sql}") for c in source.columns], unique)


def _condition(ctx: Context, left: Scope, right: Scope, kind: str, *, may_cross: bool) -> tuple[str, bool]:
    """The ON clause, and whether it has an equality (without one the join is nearly a product)."""
    pairs = _pairs(left, right, full=kind == "FULL JOIN")
    if not pairs:
        return ("false", True) if kind == "FULL JOIN" or not may_cross else ("true", False)
    if kind != "FULL JOIN" and may_cross and ctx.chance(12):
        return _without_equality(ctx, left, right, pairs, kind), False
    parts = []
    first = ctx.pick(pairs if ctx.chance(50) else pairs[:1])
    for a, b in [first] + ([ctx.pick(pairs)] if ctx.chance(15) else []):
        parts.append(_equality(ctx, a, b, kind))
    if ctx.chance(20):
        parts.append(_residual(ctx, left, right, kind))
    return " AND ".join(parts), True


def _without_equality(ctx: Context, left: Scope, right: Scope, pairs: list[tuple[Col, Col]], kind: str) -> str:
    if ctx.chance(50):
        a, b = ctx.pick(pairs)
        other = ctx.pick(pairs)
        second = f"{other[0].sql} = {other[1].sql}" if ctx.chance(50) else _residual(ctx, left, right, kind)
        return f"({a.sql} = {b.sql} OR {second})"
    return _residual(ctx, left, right, kind)


def _pairs(left: Scope, right: Scope, *, full: bool) -> list[tuple[Col, Col]]:
    pairs = []
    for a in usable(left):
        kinds = (a.kind,) if full else comparable(a.kind)
        pairs += [(a, b) for b in usable(right, *kinds)]
    # Keys first: the simplest join is the likely one.
    return sorted(pairs, key=lambda p: (not p[0].sql.endswith((".id", ".k")), not p[1].sql.endswith((".id", ".k"))))


def _equality(ctx: Context, a: Col, b: Col, kind: str) -> str:
    if kind != "FULL JOIN" and ctx.chance(10):
        return f"{a.sql} IS NOT DISTINCT FROM {b.sql}"
    if a.kind in INTEGERS and ctx.chance(10):
        return f"{a.sql} + 1 = {b.sql}"
    if a.kind == "text" and ctx.chance(15):
        return f"lower({a.sql}) = {b.sql}"
    return f"{b.sql} = {a.sql}" if ctx.chance(50) else f"{a.sql} = {b.sql}"


def _residual(ctx: Context, left: Scope, right: Scope, kind: str) -> str:
    """A condition beside the keys, or instead of them."""
    if kind == "JOIN" and ctx.chance(60):
        return predicate(ctx.draw, [*left, *right])
    if ctx.chance(30):
        return predicate(ctx.draw, ctx.pick([right, left]), 0)
    orders = [
        (a, b)
        for a in usable(left, *INTEGERS, "money", "numeric", "text", *TIMES, "float8")
        for b in usable(right, *((a.kind,) if a.kind not in INTEGERS else INTEGERS))
    ]
    if not orders:
        return predicate(ctx.draw, right, 0)
    a, b = ctx.pick(orders)
    compared = f"{a.sql} {ctx.pick(COMPARISONS[1:])} {b.sql}"
    if ctx.chance(25):
        return f"({compared} OR {b.sql} = {constant(ctx.draw, b.kind)})"
    return f"({compared})"
