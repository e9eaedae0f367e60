"""Rows on their way to Parquet: read from PostgreSQL, made into files, remembered, uploaded."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from runnel.catalog.owner import AsOwner
from runnel.lake.format.model import Lake, LakeColumn, LakeTable, WrittenFile
from runnel.lake.store.storage import open_store
from runnel.lake.write.parquet import Encoded, encode_delete_file, encode_files, file_name
from runnel.lake.write.pgtext import text_schema, to_lake
from runnel.sinks.ducklake.columns import PublishedColumn, identities, unreadable
from runnel.sinks.ducklake.uploads import Uploads
from runnel.sinks.model import Refreshed
from runnel.transport import stream_csv

_UPLOADS_AT_ONCE = 4
_HASHES = (("h", pa.int64()), ("h2", pa.int64()))


@dataclass
class Reading:
    """Rows of a SELECT (columns o<i>) as the lake's batches; their hashes are kept while they pass."""

    owner: AsOwner
    columns: Sequence[PublishedColumn]
    lake_columns: Sequence[LakeColumn]
    hashed: bool = True
    h: list[pa.Array] = field(default_factory=list)
    h2: list[pa.Array] = field(default_factory=list)

    def batches(self, select: str, constants: Sequence[tuple[str, pa.DataType]] = ()) -> Iterator[pa.RecordBatch]:
        """The rows; `constants` are further columns of the SELECT, which follow the published ones as they are."""
        names = [f"s.o{i}" for i in range(len(self.columns))]
        items = [column.read_sql(name) for column, name in zip(self.columns, names, strict=True)]
        items += [f"s.{name}" for name, _ in constants]
        items += identities(self.columns, names) if self.hashed else []
        extra = [*constants, *(_HASHES if self.hashed else ())]
        schema = text_schema(self.lake_columns, extra)
        types = [column.read_type for column in self.columns]
        types += ["text" for _ in constants] + ["int8" for _ in (_HASHES if self.hashed else ())]
        chunks = self.owner.csv(f"SELECT {', '.join(items)} FROM ({select}) AS s", types)
        try:
            for batch in stream_csv(chunks, schema):
                if self.hashed:
                    self.h.append(batch.column("h"))
                    self.h2.append(batch.column("h2"))
                rows = to_lake(batch, self.lake_columns)
                for name, _ in constants:
                    rows = rows.append_column(name, batch.column(name))
                yield rows
        except pa.ArrowInvalid as error:
            raise unreadable(self.columns, error) from error

    def hashes(self, counts: Sequence[int]) -> list[tuple[pa.Array, pa.Array]]:
        """The rows' hashes, divided among the files they went to."""
        h, h2 = pa.chunked_array(self.h, pa.int64()), pa.chunked_array(self.h2, pa.int64())
        parts, at = [], 0
        for count in counts:
            parts.append((h.slice(at, count).combine_chunks(), h2.slice(at, count).combine_chunks()))
            at += count
        return parts


def changes_sql(columns: int, delta: str) -> str:
    """A delta's rows, each as often as its weight says, with what happened to them."""
    names = ", ".join(f"o{i}" for i in range(columns))
    action = "CASE WHEN w > 0 THEN 'insert' ELSE 'delete' END AS action"
    return f"SELECT {names}, {action} FROM {delta}, generate_series(1, abs(w))"


def logged(batches: Iterable[pa.RecordBatch], refreshed: Refreshed) -> Iterator[pa.RecordBatch]:
    """Rows with their action, and with the refresh and its time behind that."""
    at = dt.datetime.fromisoformat(refreshed.at)
    for batch in batches:
        count = batch.num_rows
        numbered = batch.append_column("refresh", pa.array([refreshed.id] * count, pa.int64()))
        yield numbered.append_column("at", pa.array([at] * count, pa.timestamp("us", tz="UTC")))


@dataclass
class FileWriter:
    """Writes files of a lake for one transaction."""

    lake: Lake
    uploads: Uploads
    compression: str
    milliseconds: float = 0.0
    """Spent with the store."""

    def send(
        self,
        table: LakeTable,
        columns: Sequence[LakeColumn],
        batches: Iterable[pa.RecordBatch],
        deletions: Mapping[str, Mapping[int, int]] | None = None,
    ) -> tuple[list[WrittenFile], list[WrittenFile]]:
        """Write rows, and per data file (by its path) the positions that are deleted in it, with their snapshots.

        Returns the files of rows and the files of positions.
        """
        gone = [encode_delete_file(path, each, encrypt=self.lake.encrypted) for path, each in (deletions or {}).items()]
        made = encode_files(batches, columns, compression=self.compression, encrypt=self.lake.encrypted)
        sent = self._send(table, itertools.chain(gone, made))
        return sent[len(gone) :], sent[: len(gone)]

    def reserve(self, table: LakeTable, count: int) -> list[str]:
        """Names of files that somebody else will write."""
        names = [file_name() for _ in range(count)]
        self.uploads.start(self.lake.name, [table.path + name for name in names])
        return names

    def arrived(self, table: LakeTable, names: Sequence[str]) -> None:
        """Files that somebody else has written."""
        self.uploads.arrived([table.path + name for name in names])

    def abandon(self, table: LakeTable, files: Sequence[WrittenFile]) -> None:
        """Files that turned out to be of no use."""
        self.uploads.abandon(open_store(table.path, self.lake.options), [table.path + file.path for file in files])

    def _send(self, table: LakeTable, made: Iterable[Encoded]) -> list[WrittenFile]:
        """Upload files while the next are being made."""
        store = open_store(table.path, self.lake.options)
        sent: list[WrittenFile] = []
        made = iter(made)
        ahead = list(itertools.islice(made, 2))
        if len(ahead) < 2:  # noqa: PLR2004
            for only in ahead:
                self.uploads.start(self.lake.name, [table.path + only.file.path])
                began = time.perf_counter()
                store.put(table.path + only.file.path, memoryview(only.data))
                self.uploads.arrived([table.path + only.file.path])
                self.milliseconds += (time.perf_counter() - began) * 1000
            return [only.file for only in ahead]
        with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
            waiting = []
            for encoded in itertools.chain(ahead, made):
                self.uploads.start(self.lake.name, [table.path + encoded.file.path])
                waiting.append(pool.submit(store.put, table.path + encoded.file.path, memoryview(encoded.data)))
                sent.append(encoded.file)
            began = time.perf_counter()
            for each, file in zip(waiting, sent, strict=True):
                each.result()
                self.uploads.arrived([table.path + file.path])
            self.milliseconds += (time.perf_counter() - began) * 1000
        return sent
