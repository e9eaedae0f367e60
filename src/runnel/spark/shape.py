"""What a prepared plan depends on, and when a plan that was made for more changes serves for fewer.

A stage over n tables has a shape for each set of them that changed together. Planning takes Spark a tenth of a second
and more, so a refresh does not wait for the plan of its own set if there is one for a larger set: with empty deltas for
the leaves that did not change it computes the same. For these `before` is `after - nothing`; and a term of theirs has
no rows, since whatever it reads is read for the keys of its delta, and none was read.

    plan for {a, b}:   da >< b_before  +  a_after >< db         with b_before = b_after - db
    only a changed:    da >< b_after   +  nothing >< nothing
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa

from runnel.delta.parts import Part, Version
from runnel.delta.work import Side, Work
from runnel.plan.stage import Branch, Stage

Use: TypeAlias = tuple[int, int, int, Side]
"""Where rows are used: the branch, the leaf whose term it is, the leaf, and what of it."""

Key: TypeAlias = tuple[int, int]
"""A term: the branch, and the leaf that changed."""

SIDES: Mapping[Version, tuple[Side, ...]] = {
    "delta": ("delta",),
    "after": ("after",),
    "before": ("after", "delta"),
    "after_keys": ("after", "delta"),
    "before_keys": ("after", "delta"),
}
"""What is read for each version; of keys the delta says which other columns there would be."""


@dataclass(frozen=True, slots=True)
class TermShape:
    """One term."""

    branch: Branch
    parts: tuple[tuple[int, object, tuple[tuple[int, Version], ...]], ...]


@dataclass(frozen=True)
class Shape:
    """All that a stage's plan depends on, but for the columns of its inputs."""

    stage: int
    sums: int
    terms: tuple[tuple[Key, TermShape], ...]
    slots: tuple[tuple[Use, int], ...]
    """Which of its inputs each use reads: terms of a branch share its deltas."""

    @cached_property
    def slot(self) -> Mapping[Use, int]:
        """The input of each use."""
        return dict(self.slots)

    def inputs_for(
        self, less: Shape, tables: Sequence[pa.Table], schemas: Sequence[pa.Schema]
    ) -> list[pa.Table] | None:
        """What to give to this shape's plan, whose inputs have these schemas, to compute the work of another shape.

        None: it cannot.
        """
        mine, terms = self.slot, dict(self.terms)
        if (self.stage, self.sums) != (less.stage, less.sums) or not less.slot.keys() <= mine.keys():
            return None
        if any(key not in terms or terms[key].branch != term.branch for key, term in less.terms):
            return None
        given: dict[int, pa.Table] = {}
        for use, number in less.slots:
            if given.setdefault(mine[use], tables[number]) is not tables[number]:
                # Two inputs of the one are a single input of the other.
                return None
        inputs = [given[n] if n in given else schema.empty_table() for n, schema in enumerate(schemas)]
        return inputs if all(t.schema == s for t, s in zip(inputs, schemas, strict=True)) else None


def shape_of(stage: Stage, work: Sequence[Work]) -> tuple[Shape, list[pa.Table]]:
    """The shape of a stage's work where few rows are read, and its inputs."""
    tables: list[pa.Table] = []
    slots: dict[Use, int] = {}
    for use, rows in _uses(work):
        known = next((i for i, table in enumerate(tables) if table is rows), None)
        if known is None:
            known = len(tables)
            tables.append(rows)
        slots[use] = known
    terms = tuple(((w.number, w.whole.leaf), TermShape(w.branch, tuple(map(_part_shape, w.whole.parts)))) for w in work)
    return Shape(stage.index, len(stage.branches[0].sums), terms, tuple(slots.items())), tables


def _uses(work: Sequence[Work]) -> Iterator[tuple[Use, pa.Table]]:
    for w in work:
        for part in w.whole.parts:
            for leaf, version in part.versions.items():
                for side in SIDES[version]:
                    rows = w.rows_of(leaf, side)
                    assert isinstance(rows, pa.Table), "few rows, so none is left to tasks"
                    yield (w.number, w.whole.leaf, leaf, side), rows


def _part_shape(part: Part) -> tuple[int, object, tuple[tuple[int, Version], ...]]:
    return part.sign, part.tree, tuple(sorted(part.versions.items()))
