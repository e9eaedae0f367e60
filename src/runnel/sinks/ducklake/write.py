"""Rows on their way to a lake: made into files, remembered, uploaded."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from runnel.lake.format.model import Lake, LakeTable, WrittenFile
from runnel.lake.store.storage import open_store
from runnel.lake.write.body import Encoded
from runnel.lake.write.deletions import Deletions, encode_delete_file
from runnel.lake.write.parquet import TARGET_SIZE, Form, encode_files, file_name
from runnel.sinks.uploads import Uploads

_UPLOADS_AT_ONCE = 4


@dataclass
class FileWriter:
    """Writes files of a lake for one transaction."""

    lake: Lake
    uploads: Uploads
    milliseconds: float = 0.0
    """Spent with the store."""

    def send(
        self,
        table: LakeTable,
        form: Form,
        batches: Iterable[pa.RecordBatch],
        deletions: Sequence[tuple[str, Callable[[], Deletions]]] = (),
    ) -> tuple[list[WrittenFile], list[WrittenFile]]:
        """Write rows, and per data file (by its path) what is deleted in it, asked for when its turn has come.

        Returns the files of rows and the files of positions.
        """
        gone = (encode_delete_file(path, each(), encrypt=form.encrypt) for path, each in deletions)
        sent = self._send(table, itertools.chain(gone, encode_files(form, batches, target_size=TARGET_SIZE)))
        return sent[len(deletions) :], sent[: len(deletions)]

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
        """Upload files while the next is being made; the store decides how fast they are made."""
        store = open_store(table.path, self.lake.options)
        made = iter(made)
        ahead = list(itertools.islice(made, 2))
        if len(ahead) < 2:  # noqa: PLR2004
            for only in ahead:
                self.uploads.start(self.lake.name, [table.path + only.file.path])
                began = time.perf_counter()
                only.upload(store, table.path)
                self.uploads.arrived([table.path + only.file.path])
                self.milliseconds += (time.perf_counter() - began) * 1000
            return [only.file for only in ahead]
        sent: list[WrittenFile] = []
        waiting: deque[Future[WrittenFile]] = deque()
        with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
            for encoded in itertools.chain(ahead, made):
                self.uploads.start(self.lake.name, [table.path + encoded.file.path])
                waiting.append(pool.submit(encoded.upload, store, table.path))
                sent.append(encoded.file)
                if len(waiting) > _UPLOADS_AT_ONCE:
                    self._await(table, waiting.popleft())
            for each in waiting:
                self._await(table, each)
        return sent

    def _await(self, table: LakeTable, upload: Future[WrittenFile]) -> None:
        began = time.perf_counter()
        self.uploads.arrived([table.path + upload.result().path])
        self.milliseconds += (time.perf_counter() - began) * 1000
