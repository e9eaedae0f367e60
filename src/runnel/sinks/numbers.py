"""Whole numbers that may be many: in memory while they are few, in a temporary file without a name beyond that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_IN_MEMORY = 1 << 20
"""Numbers, of eight bytes each."""
_TEXT = 1 << 20


@dataclass
class Numbers:
    """Rows of numbers, each of the same width, in the order in which they came."""

    width: int = 1
    count: int = 0
    """Rows so far."""
    _parts: list[Ints] = field(default_factory=list)
    _held: int = 0
    _file: IO[bytes] | None = None

    def add(self, *columns: Ints) -> None:
        """Append rows, given as columns."""
        rows = np.column_stack(columns) if self.width > 1 else columns[0]
        self._parts.append(rows)
        self.count += len(rows)
        self._held += rows.size
        if self._held > _IN_MEMORY:
            self._spill()

    def all(self) -> Ints:
        """All rows; of many the pages that are looked at come from the file, and go when others need the memory."""
        shape = (-1, self.width) if self.width > 1 else (-1,)
        if self._file is None:
            rows = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.int64)
            return rows.reshape(shape)
        self._spill()
        self._file.flush()
        return np.memmap(self._file, dtype=np.int64, mode="r").reshape(shape)

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="runnel-")  # noqa: SIM115  (as long as the numbers are needed)
        for part in self._parts:
            self._file.write(np.ascontiguousarray(part).data)
        self._parts, self._held = [], 0


def from_lines(lines: Iterable[bytes]) -> Numbers:
    """Numbers as COPY prints them, one or more in a line.

    >>> from_lines([b"3\\n", b"-4 5\\n"]).all().tolist()
    [3, -4, 5]
    """
    numbers, waiting, size = Numbers(), [], 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _TEXT:
            numbers.add(_parsed(waiting))
            waiting, size = [], 0
    if waiting:
        numbers.add(_parsed(waiting))
    return numbers


def _parsed(lines: list[bytes]) -> Ints:
    return np.fromstring(b"".join(lines).decode(), dtype=np.int64, sep=" ")
