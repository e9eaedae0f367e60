"""Who would evaluate a refresh now, by the decisions of a refresh (`runnel.refresh.leaves`). Nothing is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from runnel.explain.evaluators import Evaluator, LeafForecast, StageForecast
from runnel.explain.words import aliases
from runnel.plan.stage import Branch, Constant, Leaf, Stage, StageRef
from runnel.refresh import leaves as refreshing
from runnel.refresh.files import asked
from runnel.refresh.leaves import Leaves, by_tasks, stays_in_postgres
from runnel.refresh.stagework import adds_up

_Way = refreshing.Evaluator | Literal["files"]
_WHO: Mapping[_Way, Evaluator] = {
    "driver": "the driver", "here": "PostgreSQL", "slices": "slices", "files": "files", "spark": "tasks",
}  # fmt: skip
"""Who evaluates, in explain's words."""


def forecast(stages: Sequence[Stage], leaves: Leaves) -> list[StageForecast]:
    """One per stage. Call it after the sources have been asked what waits."""
    return [_stage(stage, leaves) for stage in stages]


def _stage(stage: Stage, leaves: Leaves) -> StageForecast:
    if not stage.branches:
        return StageForecast("PostgreSQL", "PostgreSQL")
    who_updates = [leaves.who_updates(branch) for branch in stage.branches]
    alone = stays_in_postgres(stage, who_updates)
    updates = _ways(stage, leaves, who_updates, changes=True)
    builds = _ways(stage, leaves, [leaves.who_builds(branch) for branch in stage.branches], changes=False)
    found = [
        _leaf(branch, leaf, leaves, "PostgreSQL" if alone else _WHO[update])
        for branch, update in zip(stage.branches, updates, strict=True)
        for leaf in branch.leaves
        if not isinstance(leaf.source, Constant)
    ]
    return StageForecast("PostgreSQL" if alone else _largest(updates), _largest(builds), found)


def _ways(stage: Stage, leaves: Leaves, who: Sequence[refreshing.Evaluator], *, changes: bool) -> list[_Way]:
    """The same, and which of the branches tasks would let DuckDB join."""
    return [
        "files"
        if each == "spark" and asked(stage, number, leaves, changes=changes, adds_up=adds_up(stage, changes))
        else each
        for number, each in enumerate(who)
    ]


def _largest(who: Sequence[_Way]) -> Evaluator:
    """Of branches that are evaluated in different ways, the one with the most machinery."""
    return _WHO[max(who, key=list(_WHO).index)]


def _leaf(branch: Branch, leaf: Leaf, leaves: Leaves, changes_by: Evaluator) -> LeafForecast:
    whole = leaves.source(leaf).read(leaf, None)
    hidden = isinstance(leaf.source, StageRef)
    return LeafForecast(
        alias=aliases(branch)[leaf.id],
        waiting=None if hidden else leaves.waiting(leaf),
        changes_by=changes_by,
        rows=None if hidden else whole.estimate,
        whole_by="tasks" if by_tasks(whole, leaves.threshold) else "the driver",
    )
