"""A block with windows, DISTINCT ON or LIMIT over a derived table `s` -> a head that recomputes partitions."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import PartitionHead, StageRef
from runnel.sql import registry
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.partitions import ALIAS, limited, windows_of


def is_partition_block(select: exp.Select) -> bool:
    """Whether the block is a function of whole partitions of its rows."""
    distinct = select.args.get("distinct")
    return limited(select) or bool(windows_of(select)) or (distinct is not None and bool(distinct.args.get("on")))


def partition_head(select: exp.Select, stage: Callable[[exp.Query], StageRef]) -> PartitionHead:
    """The head of a block that `rewrite.partitions` has layered."""
    if any(ex.mentions_clock(e) for e in [*select.expressions, *_order_of(select)]):
        raise NotDifferentiable(registry.CLOCK_VALUE)
    derived = select.args["from_"].this
    assert isinstance(derived, exp.Subquery) and derived.alias == ALIAS
    source = stage(derived.this)
    columns = {c.name: c for c in source.columns}
    distinct = select.args.get("distinct")
    on = distinct.args.get("on") if distinct is not None else None
    order = select.args.get("order")
    items = ", ".join(ex.pg(e) for e in select.expressions)
    rest = f" {ex.pg(order)}" if order is not None else ""
    if on is not None:
        names = {e.name for e in on.expressions}
        head_items = f"DISTINCT ON ({', '.join(ex.pg(e) for e in on.expressions)}) {items}"
        return PartitionHead(source, _key_columns(names, source), head_items, rest, rule="DISTINCT ON")
    if limited(select):
        for key in ("offset", "limit"):
            if select.args.get(key):
                rest += f" {ex.pg(select.args[key])}"
        short = {n for n, c in columns.items() if c.type.is_short}
        return PartitionHead(source, (), items, rest, _index(order, short), rule="First rows in order")
    sets = [frozenset(p.name for p in w.args.get("partition_by") or []) for w in windows_of(select)]
    smallest = min(sets, key=len)
    if not all(smallest <= s for s in sets):
        raise NotDifferentiable(registry.UNRULED, "windows over different partitions in one block")
    rule = "Window functions by partition" if smallest else "Window functions over all rows"
    keys = _key_columns(smallest, source)
    return PartitionHead(source, keys, items, rest, sorted=_fixed_order(keys, source), rule=rule)


def _order_of(select: exp.Select) -> list[exp.Expr]:
    return [select.args["order"]] if select.args.get("order") else []


def _key_columns(names: set[str] | frozenset[str], source: StageRef) -> tuple[Column, ...]:
    return tuple(c for c in source.columns if c.name in names)


def _fixed_order(keys: tuple[Column, ...], source: StageRef) -> tuple[str, ...]:
    """A float's sum must come out the same whenever it is computed again, so its order is fixed: partitions first."""
    if not any(c.type.family == "float" for c in source.columns):
        return ()
    rest = [c for c in source.columns if c not in keys]
    return tuple(f"u.{quote(c.name)}" + ("" if tr.is_orderable(c.type) else "::text") for c in [*keys, *rest])


def _index(order: exp.Expr | None, short: set[str]) -> tuple[str, ...]:
    """As many leading ORDER BY items as an index can hold."""
    items: list[str] = []
    for item in order.expressions if order is not None else []:
        column = item.this if isinstance(item, exp.Ordered) else item
        if not isinstance(column, exp.Column) or column.name not in short:
            break
        bare = item.copy()
        for node in bare.find_all(exp.Column):
            node.set("table", None)
        items.append(ex.pg(bare))
    return tuple(items)
