"""Files that share a manifest. Small groups are merged: a snapshot has few, and shares most of them with others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

LARGEST = 1000
"""Files of a group, when many are listed at once."""
FAN = 16


class Group:
    """Files that share a manifest, by id. Compared very often, so it knows its hash."""

    __slots__ = ("_hash", "files", "spec", "tier")

    def __init__(self, spec: int, files: tuple[int, ...]) -> None:
        self.spec = spec
        self.files = files
        self.tier = 0
        """How large it is, as a power of sixteen; -1 if it is not merged any more."""
        while len(files) >= FAN ** (self.tier + 1):
            self.tier += 1
        if len(files) >= LARGEST:
            self.tier = -1
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
        if group.tier >= 0:
            tiers[group.spec, group.tier].append(group)
    return [
        (members, Group(spec, tuple(id for group in members for id in group.files)))
        for (spec, _), members in tiers.items()
        if len(members) >= FAN
    ]
