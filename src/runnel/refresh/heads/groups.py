"""Groups: GROUP BY, aggregates and DISTINCT. The algebra is in `runnel.apply.groups`."""

from __future__ import annotations

from runnel.apply import ddl
from runnel.apply.groups import build_groups, merge_groups, outputs_sql
from runnel.apply.output import expanded_sql
from runnel.plan.stage import Stage
from runnel.refresh.heads.operations import HeadOperations, look_away
from runnel.refresh.stagework import StageWork


def _merge(work: StageWork, stage: Stage) -> bool:
    loaded = work.load_changes(stage)
    if loaded == "nothing":
        return False
    with work.steps("merge"):
        merge_groups(work.owner, stage, work.tables(stage), few=loaded == "few")
    return True


def _build(work: StageWork, stage: Stage) -> str:
    work.load_everything(stage)
    tables = work.tables(stage)
    with work.steps("merge"):
        build_groups(work.owner, stage, tables)
        ddl.index_state(work.owner.conn, stage, tables)
    return expanded_sql(stage, outputs_sql(stage, tables))


OPERATIONS = HeadOperations(merge=_merge, build=_build, before=look_away)
