"""Random FROM clauses: joins of every kind over tables, subqueries and stream tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from hypothesis import strategies as st

from tests.oracle.expressions import COMPARISONS, Scope, comparable, predicate, usable
from tests.oracle.values import INTEGERS, TIMES, Col, chance, constant, pick


@dataclass(frozen=True)
class Source:
    """Something that can stand in FROM, with the names of its columns."""

    sql: str
    columns: Sequence[Col]


@dataclass
class FromClause:
    """The text of a FROM clause and what is visible behind it."""

    sql: str
    scope: list[Col]
    crossed: bool = False
    """Whether there is a product in it: one is enough."""
    joined: bool = False
    condition: str | None = None
    """What WHERE has to say about a comma in FROM."""


NextSource = Callable[[], Source]


def from_clause(draw: st.DrawFn, source: NextSource, most: int) -> FromClause:
    """One item, or a tree of joins over up to `most`, or two of them with a comma between."""
    size, aliases = draw(st.integers(1, most)), count()
    if size == 1 or not chance(draw, 8):
        return _tree(draw, source, size, aliases)
    left, right = _tree(draw, source, size - 1, aliases), _tree(draw, source, 1, aliases)
    condition, _ = _condition(draw, left.scope, right.scope, "JOIN", may_cross=False)
    return FromClause(f"{left.sql}, {right.sql}", left.scope + right.scope, left.crossed, True, condition)


def _tree(draw: st.DrawFn, source: NextSource, size: int, aliases: count[int]) -> FromClause:
    if size == 1:
        return _item(source(), f"a{next(aliases)}")
    right_size = 2 if size > 2 and chance(draw, 30) else 1
    left = _tree(draw, source, size - right_size, aliases)
    right = _tree(draw, source, right_size, aliases)
    kind = pick(draw, ["JOIN", "JOIN", "LEFT JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"])
    scope = left.scope + right.scope
    crossed = left.crossed or right.crossed
    if kind == "CROSS JOIN" and not crossed:
        return FromClause(f"{left.sql} CROSS JOIN {_grouped(right)}", scope, True, True)
    kind = "JOIN" if kind == "CROSS JOIN" else kind
    shared = _shared(left.scope, right.scope) if right_size == 1 else []
    if shared and chance(draw, 15):
        return FromClause(f"{left.sql} {kind} {right.sql} USING ({pick(draw, shared)})", scope, crossed, True)
    condition, keyed = _condition(draw, left.scope, right.scope, kind, may_cross=not crossed)
    return FromClause(f"{left.sql} {kind} {_grouped(right)} ON {condition}", scope, crossed or not keyed, True)


def _shared(left: Scope, right: Scope) -> list[str]:
    """Names that stand for one column on either side, of the same kind."""
    names = [c.sql.partition(".")[2] for c in left]
    once = {n: c.kind for n, c in zip(names, left, strict=True) if names.count(n) == 1 and not c.rough}
    mine = {c.sql.partition(".")[2]: c.kind for c in right if not c.rough}
    return [n for n, kind in once.items() if mine.get(n) == kind]


def _grouped(clause: FromClause) -> str:
    return f"({clause.sql})" if clause.joined else clause.sql


def _item(source: Source, alias: str) -> FromClause:
    return FromClause(f"{source.sql} {alias}", [replace(c, sql=f"{alias}.{c.sql}") for c in source.columns])


def _condition(draw: st.DrawFn, left: Scope, right: Scope, kind: str, *, may_cross: bool) -> tuple[str, bool]:
    """The ON clause, and whether it has an equality (without one the join is nearly a product)."""
    pairs = _pairs(left, right, full=kind == "FULL JOIN")
    if not pairs:
        return ("false", True) if kind == "FULL JOIN" or not may_cross else ("true", False)
    if kind != "FULL JOIN" and may_cross and chance(draw, 8):
        return _residual(draw, left, right, kind), False
    parts = []
    for a, b in [pick(draw, pairs)] + ([pick(draw, pairs)] if chance(draw, 25) else []):
        parts.append(_equality(draw, a, b, kind))
    if chance(draw, 25):
        parts.append(_residual(draw, left, right, kind))
    return " AND ".join(parts), True


def _pairs(left: Scope, right: Scope, *, full: bool) -> list[tuple[Col, Col]]:
    pairs = []
    for a in usable(left):
        kinds = (a.kind,) if full else comparable(a.kind)
        pairs += [(a, b) for b in usable(right, *kinds)]
    # Keys first: the simplest join is the likely one.
    return sorted(pairs, key=lambda p: (not p[0].sql.endswith((".id", ".k")), not p[1].sql.endswith((".id", ".k"))))


def _equality(draw: st.DrawFn, a: Col, b: Col, kind: str) -> str:
    if kind != "FULL JOIN" and chance(draw, 10):
        return f"{a.sql} IS NOT DISTINCT FROM {b.sql}"
    if a.kind in INTEGERS and chance(draw, 10):
        return f"{a.sql} + 1 = {b.sql}"
    if a.kind == "text" and chance(draw, 15):
        return f"lower({a.sql}) = {b.sql}"
    return f"{a.sql} = {b.sql}" if draw(st.booleans()) else f"{b.sql} = {a.sql}"


def _residual(draw: st.DrawFn, left: Scope, right: Scope, kind: str) -> str:
    """A condition beside the keys. Under outer joins Spark evaluates it, so it compares what sorts alike there."""
    if kind == "JOIN" and chance(draw, 60):
        return predicate(draw, [*left, *right])
    if chance(draw, 40):
        return predicate(draw, pick(draw, [right, left]), 0)
    orders = [
        (a, b)
        for a in usable(left, *INTEGERS, "money", *TIMES, "float8")
        for b in usable(right, *((a.kind,) if a.kind not in INTEGERS else INTEGERS))
    ]
    if not orders:
        return predicate(draw, right, 0)
    a, b = pick(draw, orders)
    compared = f"{a.sql} {pick(draw, COMPARISONS[1:])} {b.sql}"
    if chance(draw, 25):
        return f"({compared} OR {b.sql} = {constant(draw, b.kind)})"
    return f"({compared})"
