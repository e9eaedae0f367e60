"""Which positions of a data file a snapshot does not see: those deleted up to it, and those born after it.

DuckLake keeps one file of deletions per data file for all snapshots, each position with its snapshot; merged files hold
rows of several snapshots. Iceberg wants a list per snapshot. A mask tells from which snapshot to which the list stays
the same, and makes it when it has to be written. A delete file that both formats read is used as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runnel.iceberg.facts import Facts, File, Inlined
from runnel.lake.format.model import DataFile, DeleteFile, Lake
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import NEVER, FileScan, deletions, versions
from runnel.lake.write.deletions import is_for_both

Ints = npt.NDArray[np.int64]
Key = tuple[int, int]
"""A state of a mask: the file, and the last snapshot that changed the mask. With a delete file that is used as it is:
its negative id."""

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Mask:
    """The unseen positions of one file over time."""

    file: int
    events: tuple[int, ...]
    """Snapshots at which they change, ascending."""
    direct: DeleteFile | None
    """A delete file that says it all from `direct_from` on."""
    direct_from: int
    deaths: tuple[Ints, Ints]
    """Positions, and when each was deleted."""
    births: Ints
    """When each row was born; empty if all were born with the file."""
    first_death: int
    last_birth: int

    def key(self, at: int) -> Key | None:
        """The state at a snapshot; None if all rows are seen."""
        if self.direct is not None and at >= self.direct_from:
            return (self.file, -1 - self.direct.id)
        place = bisect_right(self.events, at)
        event = self.events[place - 1] if place else 0
        return (self.file, event) if event >= self.first_death or event < self.last_birth else None

    def positions(self, at: int) -> Ints:
        """What is not seen, ascending."""
        places, snapshots = self.deaths
        gone = places[snapshots <= at]
        if not len(self.births):
            return gone
        return np.union1d(gone, np.flatnonzero(self.births > at))

    def breaks(self) -> tuple[int, ...]:
        """Where the state may change."""
        return self.events if self.direct is None else (*self.events, self.direct_from)


def masks(
    lake: Lake,
    facts: Facts,
    known: dict[int, tuple[object, Mask]],
    data_file: Callable[[int], DataFile],
    *,
    as_files: bool,
) -> dict[int, Mask]:
    """The masks of all files that need one. `known` keeps what was read before, with what it was made of.

    `as_files`: delete files that both formats read are used as they are. Only in version 2: version 3 has deletion
    vectors, and Trino fails when it adds to a file of positions there.
    """
    found: dict[int, Mask] = {}
    listed = [moment.id for moment in facts.moments]
    for id in {*facts.late, *facts.inlined, *facts.deletes, *facts.inlined_deletes} & facts.files.keys():
        file, rows = facts.files[id], facts.inlined.get(id)
        deletes, kept = facts.deletes.get(id, ()), facts.inlined_deletes.get(id, ())
        born_late = file.partial_max is not None and _between(listed, file.begin, file.partial_max)
        if rows is None and not deletes and not kept and not born_late:
            continue
        source = (born_late, rows.ends if rows else (deletes, kept))
        before = known.get(id)
        if before is not None and before[0] == source:
            found[id] = before[1]
            continue
        if rows:
            mask = _of_inlined(file, rows)
        else:
            mask = _of_file(lake, file, deletes, kept, born_late, listed, data_file, as_files=as_files)
        known[id] = source, mask
        found[id] = mask
    for gone in known.keys() - facts.files.keys():
        del known[gone]
    return found


def _between(listed: list[int], first: int, last: int) -> bool:
    """Whether a snapshot exists from `first` to before `last`."""
    place = bisect_right(listed, first - 1)
    return place < len(listed) and listed[place] < last


def _of_inlined(file: File, rows: Inlined) -> Mask:
    places = [place for place, end in enumerate(rows.ends) if end is not None]
    ends = np.array([rows.ends[place] for place in places], dtype=np.int64)
    return _mask(file, None, 0, (np.array(places, dtype=np.int64), ends), _NONE)


def _of_file(
    lake: Lake,
    file: File,
    deletes: tuple[DeleteFile, ...],
    kept: tuple[tuple[int, int], ...],
    born_late: bool,
    listed: list[int],
    data_file: Callable[[int], DataFile],
    *,
    as_files: bool,
) -> Mask:
    direct, direct_from = None, 0
    if (
        as_files
        and len(deletes) == 1
        and not kept
        and is_for_both(deletes[0].path)
        and deletes[0].encryption_key is None
    ):
        (direct,) = deletes
        direct_from = max(direct.begin, direct.partial_max or 0, (file.partial_max or 0) if born_late else 0)
        if not born_late and not _between(listed, direct.begin, direct_from):
            # No snapshot sees a part of it: nothing has to be read.
            return _mask(file, direct, direct.begin, (_NONE, _NONE), _NONE)
    scan = FileScan(data_file(file.id), (), NEVER, deletes=deletes, inlined_deletes=kept, options=lake.options)
    births = _NONE
    if born_late:
        parts = [born for _, _, born, _ in versions(scan)]
        births = np.concatenate(parts) if parts else _NONE
    deaths = deletions(scan, Tally())
    return _mask(file, direct, direct_from, deaths, births)


def _mask(file: File, direct: DeleteFile | None, direct_from: int, deaths: tuple[Ints, Ints], births: Ints) -> Mask:
    events = np.unique(np.concatenate([deaths[1], births]))
    return Mask(
        file.id,
        tuple(events[events != NEVER].tolist()),
        direct,
        direct_from,
        deaths,
        births,
        int(deaths[1].min()) if len(deaths[1]) else int(NEVER),
        int(births.max()) if len(births) else -1,
    )


def first_difference(old: Mask | None, new: Mask | None) -> int | None:
    """The first snapshot at which two masks of a file are not in the same state."""
    for at in sorted({*(old.breaks() if old else ()), *(new.breaks() if new else ())}):
        if (old.key(at) if old else None) != (new.key(at) if new else None):
            return at
    return None
