"""What each kind of head does in a refresh, as a table of operations. A head that is missing here fails at once."""

from __future__ import annotations

from collections.abc import Mapping

from runnel.plan.stage import GroupHead, PartitionHead, RecursiveHead, RowsHead, Stage
from runnel.refresh.heads import groups, partitions, recursion, rows
from runnel.refresh.heads.operations import HeadOperations

HEADS: Mapping[type, HeadOperations] = {
    RowsHead: rows.OPERATIONS,
    GroupHead: groups.OPERATIONS,
    PartitionHead: partitions.OPERATIONS,
    RecursiveHead: recursion.OPERATIONS,
}


def operations(stage: Stage) -> HeadOperations:
    """The operations of a stage's head."""
    return HEADS[type(stage.head)]
