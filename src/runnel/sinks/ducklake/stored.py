"""Reading back the little that a publication needs of files: deleted positions, and embedded row ids.

Files never change, so what was read is kept for a while.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from runnel.lake.format import encrypted
from runnel.lake.format.model import DataFile, DeleteFile, Lake
from runnel.lake.store.storage import open_store
from runnel.lake.write.parquet import ROW_ID, SNAPSHOT_ID

Ints = npt.NDArray[np.int64]

_KEPT = 64


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

    def find(self, wanted: Sequence[int]) -> tuple[list[int], list[int]]:
        """Which of the wanted rows are here, and at which positions (ascending)."""
        ids = np.asarray(wanted, dtype=np.int64)
        places = np.searchsorted(self.ascending, ids, side="right") - 1
        here = (places >= 0) & (self.ascending[np.maximum(places, 0)] == ids)
        return ids[here].tolist(), sorted(self.positions[places[here]].tolist())


@dataclass
class StoredFiles:
    """What was read, or written, lately."""

    _deletions: OrderedDict[str, Mapping[int, int]] = field(default_factory=OrderedDict)
    _row_ids: OrderedDict[str, RowIds | None] = field(default_factory=OrderedDict)

    def deletions(self, lake: Lake, file: DeleteFile) -> Mapping[int, int]:
        """Deleted positions with the snapshot that deleted each."""
        known = self._deletions.get(file.path)
        if known is None:
            table = _read(lake, file.path, file.encryption_key)
            positions = table.column("pos").to_pylist()
            named = SNAPSHOT_ID in table.column_names
            since = table.column(SNAPSHOT_ID).to_pylist() if named else [file.begin] * len(positions)
            known = dict(zip(positions, since, strict=True))
            self.remember(file.path, known)
        return known

    def remember(self, path: str, deletions: Mapping[int, int]) -> None:
        """Keep what was written to a delete file: the next one will repeat it."""
        self._deletions[path] = deletions
        while len(self._deletions) > _KEPT:
            self._deletions.popitem(last=False)

    def row_ids(self, lake: Lake, file: DataFile) -> RowIds | None:
        """The row ids that stand in a file, or None when they follow from positions."""
        if file.path not in self._row_ids:
            table = _read(lake, file.path, file.encryption_key, ROW_ID)
            named = ROW_ID in table.column_names
            self._row_ids[file.path] = RowIds.of(table.column(ROW_ID)) if named else None
            while len(self._row_ids) > _KEPT:
                self._row_ids.popitem(last=False)
        return self._row_ids[file.path]


def _read(lake: Lake, path: str, key: str | None, only: str | None = None) -> pa.Table:
    data = open_store(path, lake.options).get(path)
    if key is None:
        opened = pq.ParquetFile(pa.BufferReader(data))
        names = [only] if only in opened.schema_arrow.names else [] if only else None
        return opened.read(columns=names)
    with tempfile.TemporaryDirectory(prefix="runnel-") as folder:
        copy = Path(folder) / "file.parquet"
        copy.write_bytes(data)
        conn = encrypted.connection().cursor()
        source = f"read_parquet('{copy}', encryption_config = {{footer_key_value: from_base64('{key}')}})"
        names = [row[0] for row in conn.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()]
        wanted = [name for name in names if only is None or name == only]
        if not wanted:
            return pa.table({})
        listed = ", ".join(f'"{name}"' for name in wanted)
        return conn.execute(f"SELECT {listed} FROM {source}").to_arrow_table()
