"""Rows on their way to a lake: made into files, remembered, uploaded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from runnel.lake.format.model import Lake, LakeColumn, LakeTable, WrittenFile
from runnel.lake.store.storage import open_store
from runnel.lake.write.parquet import Encoded, encode_delete_file, encode_files, file_name
from runnel.sinks.uploads import Uploads

_UPLOADS_AT_ONCE = 4


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
