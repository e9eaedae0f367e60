"""Random set operations, with and without ALL, nested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.oracle.context import Context, Query, firm, named
from tests.oracle.values import NESTED, SQL_TYPES, Col, constant

WORDS = ("UNION ALL", "UNION", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL")


def set_operation(ctx: Context, member: Callable[[], Query]) -> Query:
    """Two or three members of the same shape."""
    first = member()
    count = 1 + ctx.number(1, 2)
    others = [member() for _ in range(count - 1)]
    words = [ctx.pick(WORDS) for _ in others]
    exact = any(w != "UNION ALL" for w in words)
    if exact:
        # Without ALL, and wherever rows must find their equals, every column must be comparable.
        first = _comparable(first)
    kinds = [c.kind for c in first.columns]
    members = [first, *(_like(ctx, o, kinds, exact=exact) for o in others)]
    texts = [f"({m.sql})" for m in members]
    if len(texts) == 3 and ctx.chance(50):
        sql = f"{texts[0]} {words[0]} ({texts[1]} {words[1]} {texts[2]})"
    else:
        sql = texts[0] + "".join(f" {w} {t}" for w, t in zip(words, texts[1:], strict=True))
    rough = [any(m.columns[i].rough for m in members) for i in range(len(kinds))]
    kinds = ["numeric" if k == "money" else k for k in kinds]
    columns = [Col(f"c{i}", k, r, small=False) for i, (k, r) in enumerate(zip(kinds, rough, strict=True))]
    unique = tuple(c.sql for c in columns) if len(words) == 1 and "ALL" not in words[0] else None
    return Query(sql, columns, unique)


def _comparable(member: Query) -> Query:
    columns = firm(member.columns)
    if len(columns) == len(member.columns):
        return member
    text, columns = named(columns)
    return Query(f"SELECT {text} FROM ({member.sql}) u", columns)


def _like(ctx: Context, member: Query, kinds: Sequence[str], *, exact: bool) -> Query:
    """The member with columns of the given kinds: its own where they fit, constants elsewhere."""
    known = firm(member.columns) if exact else list(member.columns)
    items = []
    for kind in kinds:
        fitting = [c for c in known if c.kind == kind]
        if fitting:
            items.append(ctx.pick(fitting))
        elif kind in NESTED or ctx.chance(30):
            items.append(Col(f"NULL::{SQL_TYPES[kind]}", kind))
        else:
            items.append(Col(constant(ctx.draw, kind), kind))
    if [i.sql for i in items] == [c.sql for c in member.columns]:
        return member
    text, columns = named(items)
    return Query(f"SELECT {text} FROM ({member.sql}) u", columns)
