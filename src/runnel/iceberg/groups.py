"""Files that share a manifest. Small groups are merged: a snapshot has few, and shares most of them with others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

LARGEST = 1000
"""Files of a group, when many are listed at once."""
_FAN = 16


class Group:
    """Files that share a manifest, by id. Compared very often, so it knows its hash."""

    __slots__ = ("_hash", "files", "spec")

    def __init__(self, spec: int, files: tuple[int, ...]) -> None:
        self.spec = spec
        self.files = files
        self._hash = hash((spec, files))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and (self.spec, self.files) == (other.spec, other.files)


def without(group: Group, gone: Sequence[int]) -> tuple[int, ...]:
    """The files that are left."""
    every = set(gone)
    return tuple(id for id in group.files if id not in every)


def mergers(groups: Sequence[Group]) -> list[tuple[list[Group], Group]]:
    """Sixteen small groups of about one size become one."""
    tiers: dict[tuple[int, int], list[Group]] = defaultdict(list)
    for group in groups:
        if len(group.files) < LARGEST:
            tier = 0
            while len(group.files) >= _FAN ** (tier + 1):
                tier += 1
            tiers[group.spec, tier].append(group)
    return [
        (members, Group(spec, tuple(id for group in members for id in group.files)))
        for (spec, _), members in tiers.items()
        if len(members) >= _FAN
    ]
