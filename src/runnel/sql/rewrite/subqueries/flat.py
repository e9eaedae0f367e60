"""FROM clauses as a flat chain of joins: `a, (b LEFT JOIN c ON p)` -> `a CROSS JOIN b LEFT JOIN c ON p`.

Only then can joins be appended whose conditions see every table, or a table be put in front of all of them. What has
to stay in parentheses are the right operands of outer joins, and right operands in which a RIGHT or FULL join would
pad what is not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite.subqueries import build
from runnel.sql.rewrite.subqueries.scopes import NONE, Names, item_names
from runnel.sql.rewrite.tree import is_join_group


def flatten(select: exp.Select) -> None:
    """Make a SELECT's FROM clause flat, in place."""
    source = select.args.get("from_")
    if source is None:
        return
    chain = [exp.Join(this=source.this.copy(), kind="CROSS"), *(j.copy() for j in select.args.get("joins") or [])]
    padding = any(_pads(j) for j in chain)
    where: list[exp.Expr] = []
    flat = list(_spread(chain, where, padding, first=True))
    select.set("from_", exp.From(this=flat[0].this))
    select.set("joins", flat[1:])
    build.add_where(select, where)


def _spread(chain: list[exp.Join], where: list[exp.Expr], padding: bool, *, first: bool) -> Iterator[exp.Join]:
    for number, join in enumerate(chain):
        item = join.this
        inner = _inside(item) if _is_nested(item) else None
        if inner is None or not (number == 0 and first) and (_side(join) or join.args.get("using") or padding):
            if not any(join.args.get(k) for k in ("side", "kind", "on", "using", "method")):
                join.set("kind", "CROSS")
            yield join
            continue
        yield from _spread(inner, where, padding, first=number == 0 and first)
        where += ex.conjuncts(join.args.get("on"))


def _is_nested(item: exp.Expr) -> bool:
    return (is_join_group(item) and not item.alias) or bool(item.args.get("joins"))


def _inside(item: exp.Expr) -> list[exp.Join]:
    """A join in parentheses as a chain."""
    joins = [j.copy() for j in item.args.get("joins") or []]
    if is_join_group(item) and not item.alias:
        return [exp.Join(this=item.this.copy(), kind="CROSS"), *joins]
    bare = item.copy()
    bare.set("joins", None)
    return [exp.Join(this=bare, kind="CROSS"), *joins]


def _side(join: exp.Join) -> str:
    return (join.side or "").upper()


def _pads(join: exp.Join) -> bool:
    return any(_side(j) in ("RIGHT", "FULL") for j in join.find_all(exp.Join))


def items(select: exp.Select) -> list[exp.Expr]:
    """The items of a flat FROM clause."""
    source = select.args.get("from_")
    return [source.this, *(j.this for j in select.args.get("joins") or [])] if source is not None else []


def nullable_names(select: exp.Select) -> Names:
    """The names that an outer join of a flat FROM clause may pad with NULL."""
    source = select.args.get("from_")
    if source is None:
        return NONE
    seen: set[str] = set(item_names(source.this)) | set(_padded_inside(source.this))
    nullable: set[str] = set()
    for join in select.args.get("joins") or []:
        own = item_names(join.this)
        if _side(join) in ("LEFT", "FULL"):
            nullable |= own
        if _side(join) in ("RIGHT", "FULL"):
            nullable |= seen
        nullable |= _padded_inside(join.this)
        seen |= own
    return frozenset(nullable)


def _padded_inside(item: exp.Expr) -> Names:
    """For a join in parentheses: all its names, if any of its joins is an outer one."""
    outer = _is_nested(item) and any(_side(j) for j in item.args.get("joins") or item.this.args.get("joins") or [])
    return item_names(item) if outer or (_is_nested(item) and is_join_group(item.this)) else NONE


def inner_conditions(select: exp.Select) -> Iterator[exp.Join]:
    """The joins of a flat chain whose ON condition could as well stand in WHERE."""
    joins = select.args.get("joins") or []
    for number, join in enumerate(joins):
        if _side(join) or join.args.get("on") is None:
            continue
        if not any(_side(later) in ("RIGHT", "FULL") for later in joins[number + 1 :]):
            yield join


def move_to_where(select: exp.Select, wanted: Callable[[exp.Expr], bool]) -> None:
    """Move the wanted conjuncts of inner joins' conditions into WHERE."""
    for join in list(inner_conditions(select)):
        parts = list(ex.conjuncts(join.args["on"]))
        moved = [p for p in parts if wanted(p)]
        if not moved:
            continue
        stay = build.every(p for p in parts if not wanted(p))
        join.set("on", stay)
        if stay is None:
            join.set("kind", "CROSS")
        build.add_where(select, moved)
