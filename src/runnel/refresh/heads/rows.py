"""Rows without state: what the branches yield is the result."""

from __future__ import annotations

from runnel.apply.load import inputs_sql
from runnel.apply.output import consolidate_sql, expanded_sql
from runnel.plan.stage import Stage
from runnel.refresh.heads.operations import HeadOperations, look_away
from runnel.refresh.stagework import StageWork


def _merge(work: StageWork, stage: Stage) -> bool:
    if work.load_changes(stage) == "nothing":
        return False
    with work.steps("merge"):
        work.owner.run(f"INSERT INTO {work.tables(stage).delta} {consolidate_sql(stage, _rows_sql(work, stage))}")
    return True


def _build(work: StageWork, stage: Stage) -> str:
    work.load_everything(stage)
    # From nothing no row takes another away.
    return expanded_sql(stage, _rows_sql(work, stage))


def _rows_sql(work: StageWork, stage: Stage) -> str:
    """The loaded rows under the names of the stage's columns."""
    renamed = ", ".join(f"i{i} AS o{i}" for i in range(len(stage.columns)))
    return f"SELECT {', '.join(filter(None, (renamed, 'w')))} FROM ({inputs_sql(stage, work.tables(stage))}) AS i"


OPERATIONS = HeadOperations(merge=_merge, build=_build, before=look_away)
