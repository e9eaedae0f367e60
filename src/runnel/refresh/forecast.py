"""Who would evaluate a refresh now, by the decisions of a refresh (`runnel.refresh.leaves`). Nothing is read."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.explain.evaluators import Evaluator, LeafForecast, StageForecast
from runnel.explain.words import aliases
from runnel.plan.stage import Branch, Constant, Leaf, Stage, StageRef
from runnel.refresh.leaves import Leaves, by_tasks, stays_in_postgres


def forecast(stages: Sequence[Stage], leaves: Leaves) -> list[StageForecast]:
    """One per stage. Call it after the sources have been asked what waits."""
    return [_stage(stage, leaves) for stage in stages]


def _stage(stage: Stage, leaves: Leaves) -> StageForecast:
    if not stage.branches:
        return StageForecast("PostgreSQL", "PostgreSQL")
    alone = stays_in_postgres(stage, leaves)
    found = [
        _leaf(branch, leaf, leaves, alone)
        for branch in stage.branches
        for leaf in branch.leaves
        if not isinstance(leaf.source, Constant)
    ]
    large = any(each.changes_by == "tasks" for each in found)
    rebuilt_large = any(each.whole_by == "tasks" for each in found)
    changes_by: Evaluator = "PostgreSQL" if alone else "tasks" if large else "the driver"
    return StageForecast(changes_by, "tasks" if rebuilt_large else "the driver", found)


def _leaf(branch: Branch, leaf: Leaf, leaves: Leaves, alone: bool) -> LeafForecast:
    whole = leaves.source(leaf).read(leaf, None)
    hidden = isinstance(leaf.source, StageRef)
    changes_by: Evaluator = "PostgreSQL" if alone else "tasks" if leaves.changes_are_many(leaf) else "the driver"
    return LeafForecast(
        alias=aliases(branch)[leaf.id],
        waiting=None if hidden else leaves.waiting(leaf),
        changes_by=changes_by,
        rows=None if hidden else whole.estimate,
        whole_by="tasks" if by_tasks(whole, leaves.threshold) else "the driver",
    )
