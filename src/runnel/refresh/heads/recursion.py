"""Recursion: WITH RECURSIVE over earlier stages. The algebra is in `runnel.apply.recursion`."""

from __future__ import annotations

from runnel.apply.recursion import build_recursion, merge_recursion
from runnel.plan.stage import Stage
from runnel.refresh.heads.operations import HeadOperations, look_away
from runnel.refresh.stagework import StageWork


def _merge(work: StageWork, stage: Stage) -> bool:
    work.use(stage)
    with work.steps("merge"):
        return merge_recursion(work.owner, stage, work.tables(stage), work.table.tables_at)


def _build(work: StageWork, stage: Stage) -> str:
    with work.steps("merge"):
        return build_recursion(work.owner, stage, work.tables(stage), work.table.tables_at)


OPERATIONS = HeadOperations(merge=_merge, build=_build, before=look_away)
