"""Partitions: windows, DISTINCT ON and LIMIT over an earlier stage. The algebra is in `runnel.apply.partitions`."""

from __future__ import annotations

from runnel.apply.partitions import all_rows_sql, recompute_partitions, touch_partitions
from runnel.plan.stage import PartitionHead, Stage
from runnel.refresh.heads.operations import HeadOperations
from runnel.refresh.stagework import StageWork


def _merge(work: StageWork, stage: Stage) -> bool:
    below = _source(stage)
    if not work.has_changed(below):
        return False
    with work.steps("merge"):
        recompute_partitions(work.owner, stage, work.tables(stage), work.table.tables_at(below))
    return True


def _build(work: StageWork, stage: Stage) -> str:
    return all_rows_sql(stage, work.table.tables_at(_source(stage)))


def _before(work: StageWork, stage: Stage, below: Stage) -> None:
    if _source(stage) == below.index:
        work.use(stage)
        touch_partitions(work.owner, stage, work.tables(stage), work.tables(below))


def _source(stage: Stage) -> int:
    assert isinstance(stage.head, PartitionHead)
    return stage.head.source.index


OPERATIONS = HeadOperations(merge=_merge, build=_build, before=_before)
