"""Deleted positions of a data file, each with the snapshot that deleted it, and the files that hold them.

The files are good for two formats. DuckLake finds the columns by their places and takes the data file from its catalog;
Iceberg finds them by its own field ids, and the data file by its full path. So a table's head needs no other files for
readers of Iceberg. By their names one can tell them from DuckDB's, which Iceberg's readers do not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runnel.lake.format.model import WrittenFile
from runnel.lake.store.beside import uri
from runnel.lake.store.storage import Store
from runnel.lake.write.body import ROW_GROUP, Encoded, new_body
from runnel.lake.write.parquet import FIELD_IDS, SNAPSHOT_ID, file_name, numbered_field

Ints = npt.NDArray[np.int64]

FOR_BOTH = "positions"
"""In the names of delete files that both formats read."""

_SCHEMA = pa.schema(
    [
        numbered_field("file_path", pa.string(), FIELD_IDS["file_path"]),
        numbered_field("pos", pa.int64(), FIELD_IDS["pos"]),
        numbered_field(SNAPSHOT_ID, pa.int64(), FIELD_IDS[SNAPSHOT_ID]),
    ]
)


@dataclass(frozen=True, slots=True)
class Deletions:
    """Positions, ascending, and as many snapshots: sixteen bytes for each."""

    positions: Ints
    snapshots: Ints

    @classmethod
    def of(cls, mapping: Mapping[int, int]) -> Deletions:
        """From positions with their snapshots, in any order."""
        positions = sorted(mapping)
        return cls(np.array(positions, dtype=np.int64), np.array([mapping[p] for p in positions], dtype=np.int64))

    @classmethod
    def at(cls, positions: Ints, snapshot: int) -> Deletions:
        """Positions (ascending) that one snapshot deletes."""
        return cls(positions, np.full(len(positions), snapshot, dtype=np.int64))

    def __len__(self) -> int:
        """How many."""
        return len(self.positions)

    def __or__(self, other: Deletions) -> Deletions:
        """Both; of a position that is in both, what the first says.

        >>> both = Deletions.of({1: 7, 5: 7}) | Deletions.of({5: 9, 3: 9})
        >>> both.positions.tolist(), both.snapshots.tolist()
        ([1, 3, 5], [7, 9, 7])
        """
        positions, first = np.unique(np.concatenate([self.positions, other.positions]), return_index=True)
        return Deletions(positions, np.concatenate([self.snapshots, other.snapshots])[first])


def is_for_both(path: str) -> bool:
    """Whether a delete file is one that readers of Iceberg take as it is.

    >>> is_for_both("s3://b/ducklake-018f-positions.parquet"), is_for_both("/a/ducklake-018f-delete.parquet")
    (True, False)
    """
    return path.endswith(f"-{FOR_BOTH}.parquet")


def write_delete_file(
    store: Store, folder: str, data_file: str, deletions: Deletions, *, encrypt: bool = False, name: str | None = None
) -> WrittenFile:
    """Write all deleted positions of a data file (its full path)."""
    return encode_delete_file(data_file, deletions, encrypt=encrypt, name=name).upload(store, folder)


def encode_delete_file(
    data_file: str, deletions: Deletions, *, encrypt: bool = False, name: str | None = None
) -> Encoded:
    """As `write_delete_file`, without the upload."""
    body = None
    for start in range(0, max(1, len(deletions)), ROW_GROUP):
        positions = deletions.positions[start : start + ROW_GROUP]
        rows = pa.table(
            [
                pa.repeat(pa.scalar(uri(data_file), pa.string()), len(positions)),
                pa.array(positions, pa.int64()),
                pa.array(deletions.snapshots[start : start + ROW_GROUP], pa.int64()),
            ],
            schema=_SCHEMA,
        )
        body = body or new_body(_SCHEMA, "zstd", rows, encrypt=encrypt)
        body.write(rows)
    assert body is not None
    return body.finish(name or file_name(FOR_BOTH), len(deletions), {})
