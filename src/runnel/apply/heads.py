"""The tables that each head needs beside those of every stage, by kind of head.

| head | for good | temporary |
|---|---|---|
| rows | | |
| groups | groups, one bag per aggregate that needs its values | the touched groups, the changes of each bag |
| partitions | | the touched partitions |
| recursion | | the rows met on the walk |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runnel.apply.group_tables import group_state, group_temporary
from runnel.apply.partitions import partition_temporary
from runnel.apply.recursive_sql import walk_temporary
from runnel.apply.tables import StageTables, TableSpec
from runnel.plan.stage import GroupHead, PartitionHead, RecursiveHead, RowsHead, Stage

Specs = Mapping[str, TableSpec]


def _none(stage: Stage, tables: StageTables) -> Specs:  # noqa: ARG001
    return {}


@dataclass(frozen=True, slots=True)
class HeadTables:
    """The tables of one kind of head, by name."""

    state: Callable[[Stage, StageTables], Specs]
    """Those that keep its state."""
    temporary: Callable[[Stage, StageTables], Specs]
    """Those it works with during a refresh."""


HEAD_TABLES: Mapping[type, HeadTables] = {
    RowsHead: HeadTables(state=_none, temporary=_none),
    GroupHead: HeadTables(state=group_state, temporary=group_temporary),
    PartitionHead: HeadTables(state=_none, temporary=partition_temporary),
    RecursiveHead: HeadTables(state=_none, temporary=walk_temporary),
}


def state_of(stage: Stage, tables: StageTables) -> Specs:
    """The permanent tables of a stage's head."""
    return HEAD_TABLES[type(stage.head)].state(stage, tables)


def temporary_of(stage: Stage, tables: StageTables) -> Specs:
    """The temporary tables of a stage's head."""
    return HEAD_TABLES[type(stage.head)].temporary(stage, tables)
