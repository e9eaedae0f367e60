"""The live files of a table in their groups, from snapshot to snapshot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runnel.iceberg.entries import spec_of
from runnel.iceberg.facts import Facts
from runnel.iceberg.groups import FAN, LARGEST, Group, mergers, without
from runnel.iceberg.partitions import Spec
from runnel.lake.format.model import LakeColumn


class Shape:
    """Columns that are counted by what they are, not compared: a history gives the same ones for the same shape."""

    __slots__ = ("columns",)

    def __init__(self, columns: tuple[LakeColumn, ...]) -> None:
        self.columns = columns

    def __hash__(self) -> int:
        return id(self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and other.columns is self.columns


@dataclass
class Live:
    """The groups at one snapshot; they move on to the next."""

    groups: list[Group]
    owner: dict[int, Group]
    _shapes: Counter[Shape]
    _tiers: Counter[tuple[int, int]]
    """How many groups of a size there are, by spec."""

    @classmethod
    def of(cls, groups: Sequence[Group], facts: Facts) -> Live:
        owner = {id: group for group in groups for id in group.files}
        shapes = Counter(Shape(facts.columns.at(facts.files[id].shape)) for id in owner)
        return cls(list(groups), owner, shapes, Counter((each.spec, each.tier) for each in groups))

    @property
    def shapes(self) -> frozenset[Shape]:
        """Those of all files."""
        return frozenset(each for each, count in self._shapes.items() if count)

    def move(self, facts: Facts, specs: Mapping[int, Spec], added: Sequence[int], gone: Sequence[int]) -> None:
        """Take files in and out."""
        for id in gone:
            self._shapes[Shape(facts.columns.at(facts.files[id].shape))] -= 1
        for group in {self.owner[id] for id in gone}:
            rest = without(group, gone)
            self._replace([group], [Group(group.spec, rest)] if rest else [])
        for id in gone:
            del self.owner[id]
        if not added:
            return
        if any(count >= FAN and tier >= 0 for (_, tier), count in self._tiers.items()):
            for old, new in mergers(self.groups):
                self._replace(old, [new])
        by_spec: dict[int, list[int]] = defaultdict(list)
        for id in sorted(added, key=lambda id: (facts.files[id].begin, id)):
            self._shapes[Shape(facts.columns.at(facts.files[id].shape))] += 1
            by_spec[spec_of(facts.files[id], specs).id].append(id)
        for spec, ids in sorted(by_spec.items()):
            self._replace([], [Group(spec, tuple(ids[i : i + LARGEST])) for i in range(0, len(ids), LARGEST)])

    def _replace(self, old: Collection[Group], new: Sequence[Group]) -> None:
        if old:
            gone = set(old)
            self.groups = [group for group in self.groups if group not in gone]
        self.groups += new
        self._tiers.subtract((each.spec, each.tier) for each in old)
        for group in new:
            self._tiers[group.spec, group.tier] += 1
            self.owner.update(dict.fromkeys(group.files, group))
