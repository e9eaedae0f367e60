"""Generated files of one table: named by what is in them, written once, found again by who has the metadata."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.beside import KEPT, beside, uri
from runnel.lake.store.storage import Store, StoreError, open_store

TELL_SECONDS = 300.0
_SIDE_BY_SIDE = 16
"""Files that are sent to a store at the same time."""
_WAITING = 1000
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class Shelf:
    """The folder of one table in one version of the format."""

    def __init__(self, lake: Lake, table: LakeTable, version: int) -> None:
        self.folder = f"{beside(lake.data_path)}{table.uuid}/v{version}/"
        self._store: Store = open_store(self.folder, lake.options)
        self._written: dict[str, int] | None = None
        self._kept: frozenset[str] = frozenset()
        self._told = -TELL_SECONDS
        self._pool: ThreadPoolExecutor | None = None
        self._sending: deque[Future[None]] = deque()

    def prepare(self, table: LakeTable) -> None:
        """Make the folders that clients write to: some make none themselves."""
        if self._store.is_local:
            for folder in (table.path, f"{self.folder}metadata", f"{self.folder}data"):
                Path(folder.removeprefix("file://")).mkdir(parents=True, exist_ok=True)

    @property
    def location(self) -> str:
        return uri(self.folder.rstrip("/"))

    def put(self, kind: str, data: bytes, ending: str) -> tuple[str, int]:
        """Write a file unless it is there; its URI and size. It is there for others when `settle` is through."""
        name = f"{kind}-{hashlib.sha256(data).hexdigest()[:32]}.{ending}"
        if self._written is None:
            self._written = self._found()
        if self._written.get(name) != len(data):
            if self._store.is_local:
                _write(self.folder + name, data)
            else:
                self._send(self.folder + name, data)
            self._written[name] = len(data)
        return uri(self.folder + name), len(data)

    def _send(self, path: str, data: bytes) -> None:
        """To a store, where each file takes its time and many can be on their way."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, "shelf")
        self._sending.append(self._pool.submit(self._store.put, path, data))
        if len(self._sending) > _WAITING:
            self._sending.popleft().result()

    def settle(self) -> None:
        """Wait until all files are written."""
        if self._pool is None:
            return
        try:
            while self._sending:
                self._sending.popleft().result()
        except BaseException:
            self._written = None
            raise
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
            self._sending.clear()

    def _found(self) -> dict[str, int]:
        """What an earlier server has written, by name and size, and maintenance still keeps.

        A file costs more to make than to look up, and a table has two for each of its snapshots.
        """
        try:
            kept = set(json.loads(self._store.get(self.folder + KEPT)))
        except (StoreError, ValueError, TypeError):
            return {}
        if self._store.is_local:
            with os.scandir(self.folder) as listed:
                return {each.name: each.stat().st_size for each in listed if each.name in kept}
        names = ((each.path.removeprefix(self.folder), each.size) for each in self._store.list(self.folder))
        return {name: size for name, size in names if name in kept}

    @property
    def is_due(self) -> bool:
        """Whether it is time to say again what is needed: far more often than files are old enough to be removed."""
        return time.monotonic() - self._told >= TELL_SECONDS

    def keep(self, uris: Iterable[str]) -> None:
        """Tell maintenance which files are needed; the others go after a time of grace."""
        self._told = time.monotonic()
        names = frozenset(each.rpartition("/")[2] for each in uris)
        if names != self._kept:
            data = json.dumps(sorted(names)).encode()
            if self._store.is_local:
                _replace(self.folder, KEPT, data)
            else:
                self._store.put(self.folder + KEPT, data)
            self._kept = names
            # What is not kept may be swept: it has to be written again if it is needed again.
            self._written = {name: size for name, size in (self._written or {}).items() if name in names}


def _write(path: str, data: bytes) -> None:
    """In place: the name tells what is in the file, so whoever writes it again writes the same bytes.

    There are very many, and each step costs as much as the next. A file that a kill or a crash has left short is known
    by its size, and written again.
    """
    is_new = True
    try:
        file = os.open(path, _FLAGS | os.O_EXCL, 0o666)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, _FLAGS, 0o666)
    except FileExistsError:
        is_new = False
        file = os.open(path, _FLAGS, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        if not is_new:
            os.ftruncate(file, len(data))
    finally:
        os.close(file)


def _replace(folder: str, name: str, data: bytes) -> None:
    """Whole or not at all. Not synced: what a crash of the machine loses is generated anew."""
    part = f"{folder}.{name}.{uuid.uuid4().hex}"
    try:
        try:
            opened = open(part, "xb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            Path(folder).mkdir(parents=True, exist_ok=True)
            opened = open(part, "xb", buffering=0)  # noqa: SIM115
        with opened:
            opened.write(data)
        os.replace(part, folder + name)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
