"""The tables of grouped stages: groups and bags for good, and what a merge touches."""

from __future__ import annotations

from runnel.apply.counters import counter_columns
from runnel.apply.tables import StageTables, TableSpec, typed
from runnel.plan.stage import Bag, GroupHead, Stage


def group_head(stage: Stage) -> GroupHead:
    """The head of a grouped stage."""
    assert isinstance(stage.head, GroupHead)
    return stage.head


def group_state(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The tables that keep groups and bags."""
    head = group_head(stage)
    keys = _key_definitions(head)
    counters = [f"{c} numeric NOT NULL" for c in counter_columns(head)]
    found = {
        tables.groups: TableSpec(["h int8 NOT NULL", *keys, "n int8 NOT NULL CHECK (n >= 0)", *counters], ("h",)),
    }
    for i, bag in enumerate(head.bags):
        values = [v if bag.nulls else f"{v} NOT NULL" for v in value_definitions(bag)]
        columns = ["h int8 NOT NULL", "vh int8 NOT NULL", *keys, *values, "n int8 NOT NULL CHECK (n > 0)"]
        by_value = _value_index(head, i)
        found[tables.bag(i)] = TableSpec(columns, ("vh", by_value) if by_value else ("vh",))
    return found


def group_temporary(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The tables of touched groups and of changes of bags."""
    head = group_head(stage)
    keys = _key_definitions(head)
    found = {tables.touched: TableSpec(["h int8", *keys, "n int8", *(f"{c} numeric" for c in counter_columns(head))])}
    for i, bag in enumerate(head.bags):
        found[tables.bag_touched(i)] = TableSpec(["h int8", "vh int8", *keys, *value_definitions(bag), "n int8"])
    return found


def _key_definitions(head: GroupHead) -> list[str]:
    """Column definitions of the group keys."""
    return [typed(f"k{i}", t, c) for i, (t, c) in enumerate(zip(head.keys, head.key_collations, strict=True))]


def value_definitions(bag: Bag) -> list[str]:
    """Column definitions of a bag's values: with their collations, by which PostgreSQL will order them."""
    return [typed(f"v{i}", t, c) for i, (t, c) in enumerate(zip(bag.types, bag.collations, strict=True))]


def _value_index(head: GroupHead, bag: int) -> str:
    """What the groups' values are found by: nothing when only distinct values are counted."""
    users = [a for a in head.aggregates if a.bag == bag]
    if any(a.call is None and a.function in ("min", "max") for a in users):
        return "h, v0" if head.bags[bag].types[0].is_short else "h"
    return "h" if any(a.call is not None for a in users) else ""
