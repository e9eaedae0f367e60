"""Reading back the little that a publication needs of files: deleted positions, and embedded row ids.

Files never change, so what was read is kept for a while.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from runnel.lake.format import encrypted
from runnel.lake.format.model import DataFile, DeleteFile, Lake
from runnel.lake.store.storage import open_store
from runnel.lake.write.deletions import Deletions
from runnel.lake.write.parquet import ROW_ID, SNAPSHOT_ID

Ints = npt.NDArray[np.int64]

_KEPT = 64
"""Files ..."""
_KEPT_ROWS = 1 << 21
"""... and positions or row ids in all of them, of sixteen bytes each."""


@dataclass(frozen=True, slots=True)
class RowIds:
    """A file's column of row ids, ready to be searched."""

    ascending: Ints
    positions: Ints
    """Where each of them stands in the file."""

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> RowIds:
        """Sort a column; of several versions of a row the last one comes last."""
        ids = np.asarray(column.to_numpy(), dtype=np.int64)
        order = np.argsort(ids, kind="stable")
        return cls(ids[order], order)

    def find(self, wanted: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Which of the wanted rows are here, and at which positions (ascending)."""
        if not len(self.ascending):
            return np.zeros(len(wanted), dtype=np.bool_), np.empty(0, dtype=np.int64)
        places = np.searchsorted(self.ascending, wanted, side="right") - 1
        here = (places >= 0) & (self.ascending[np.maximum(places, 0)] == wanted)
        return here, np.sort(self.positions[places[here]])

    @property
    def bounds(self) -> tuple[int, int]:
        """The first id, and the one after the last."""
        return (int(self.ascending[0]), int(self.ascending[-1]) + 1) if len(self) else (0, 0)

    def __len__(self) -> int:
        """How many."""
        return len(self.ascending)


@dataclass
class StoredFiles:
    """What was read, or written, lately."""

    _deletions: OrderedDict[str, Deletions] = field(default_factory=OrderedDict)
    _row_ids: OrderedDict[str, RowIds | None] = field(default_factory=OrderedDict)

    def deletions(self, lake: Lake, file: DeleteFile) -> Deletions:
        """Deleted positions with the snapshot that deleted each."""
        known = self._deletions.get(file.path)
        if known is None:
            table = _read(lake, file.path, file.encryption_key, "pos", SNAPSHOT_ID)
            known = Deletions.at(_ints(table.column("pos")), file.begin)
            if SNAPSHOT_ID in table.column_names:
                known = Deletions(known.positions, _ints(table.column(SNAPSHOT_ID)))
            self.remember(file.path, known)
        return known

    def remember(self, path: str, deletions: Deletions) -> None:
        """Keep what was written to a delete file: the next one will repeat it."""
        self._deletions[path] = deletions
        _shorten(self._deletions)

    def row_ids(self, lake: Lake, file: DataFile) -> RowIds | None:
        """The row ids that stand in a file, or None when they follow from positions."""
        if file.path not in self._row_ids:
            table = _read(lake, file.path, file.encryption_key, ROW_ID)
            found = RowIds.of(table.column(ROW_ID)) if ROW_ID in table.column_names else None
            self._row_ids[file.path] = found
            _shorten(self._row_ids)
            return found
        return self._row_ids[file.path]


def _shorten(kept: OrderedDict[str, Any]) -> None:
    """Forget the oldest, until what is left is not too much."""
    rows = sum(len(each) for each in kept.values() if each is not None)
    while kept and (len(kept) > _KEPT or rows > _KEPT_ROWS):
        _, oldest = kept.popitem(last=False)
        rows -= len(oldest) if oldest is not None else 0


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _read(lake: Lake, path: str, key: str | None, *columns: str) -> pa.Table:
    """These columns of a file, as far as it has them."""
    data = open_store(path, lake.options).get(path)
    if key is None:
        opened = pq.ParquetFile(pa.BufferReader(data))
        return opened.read(columns=[name for name in columns if name in opened.schema_arrow.names])
    with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
        copy = Path(folder) / "file.parquet"
        copy.write_bytes(data)
        conn = encrypted.connection().cursor()
        source = f"read_parquet('{copy}', encryption_config = {{footer_key_value: from_base64('{key}')}})"
        names = [row[0] for row in conn.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
        wanted = [name for name in names if name in columns]
        if not wanted:
            return pa.table({})
        listed = ", ".join(f'"{name}"' for name in wanted)
        return conn.execute(f"SELECT {listed} FROM {source}").to_arrow_table()
