"""Generated files of one table: named by what is in them, written once, found again by who has the metadata."""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.store.beside import KEPT, beside, uri
from runnel.lake.store.storage import Store, open_store

TELL_SECONDS = 300.0


class Shelf:
    """The folder of one table in one version of the format."""

    def __init__(self, lake: Lake, table: LakeTable, version: int) -> None:
        self.folder = f"{beside(lake.data_path)}{table.uuid}/v{version}/"
        self._store: Store = open_store(self.folder, lake.options)
        self._written: dict[str, int] = {}
        self._kept: frozenset[str] = frozenset()
        self._told = -TELL_SECONDS

    @property
    def location(self) -> str:
        return uri(self.folder.rstrip("/"))

    def put(self, kind: str, data: bytes, ending: str) -> tuple[str, int]:
        """Write a file unless it is there; its URI and size."""
        name = f"{kind}-{hashlib.sha256(data).hexdigest()[:32]}.{ending}"
        if name not in self._written:
            if self._store.is_local:
                _write(Path(self.folder) / name, data)
            else:
                self._store.put(self.folder + name, data)
            self._written[name] = len(data)
        return uri(self.folder + name), len(data)

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
                _write(Path(self.folder) / KEPT, data)
            else:
                self._store.put(self.folder + KEPT, data)
            self._kept = names
            # What is not kept may be swept: it has to be written again if it is needed again.
            self._written = {name: size for name, size in self._written.items() if name in names}


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all. Not synced: what a crash of the machine loses is generated anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
