"""The bytes of Parquet files: local ones mapped, remote ones fetched by range, encrypted ones through DuckDB.

Only what is needed is fetched: the footer, whose size the catalog knows, and the column chunks of the row groups that
are read. All of it is counted in a `Tally`.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import tempfile
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from runnel.lake.format.encrypted import connection
from runnel.lake.store.storage import MissingFile, open_store

if TYPE_CHECKING:
    import duckdb

_SMALL_FILE = 1 << 20
"""A file up to this size is fetched whole: one request costs more than the bytes."""
_BATCH_ROWS = 131_072


@dataclass(slots=True)
class Tally:
    """What a read cost."""

    files: int = 0
    bytes: int = 0

    def add(self, other: Tally) -> None:
        self.files += other.files
        self.bytes += other.bytes


class Stored(Protocol):
    """A data or delete file of the catalog."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def footer_size(self) -> int | None: ...
    @property
    def encryption_key(self) -> str | None: ...


class ParquetInput:
    """An open Parquet file that counts what is read from it."""

    def __init__(self, parquet: pq.ParquetFile, tally: Tally, remote: _Fetched | None) -> None:
        self.parquet = parquet
        self.starts = [0]
        for group in range(parquet.metadata.num_row_groups):
            self.starts.append(self.starts[-1] + parquet.metadata.row_group(group).num_rows)
        self._tally = tally
        self._remote = remote
        # The leaf columns below each top-level field, in the file's order.
        self._leaves: dict[str, range] = {}
        leaf = 0
        for place, name in enumerate(parquet.schema_arrow.names):
            count = _count_leaves(parquet.schema_arrow.field(place).type)
            self._leaves[name] = range(leaf, leaf + count)
            leaf += count

    def statistics(self, group: int, name: str) -> Any:
        """The footer's statistics of a column that is not nested, or None."""
        return self.parquet.metadata.row_group(group).column(self._leaves[name].start).statistics

    def batches(self, names: Sequence[str], groups: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The columns of the given row groups, each batch with the position of its first row."""
        self._fetch(names, groups)
        for group in groups:
            start = self.starts[group]
            if not names:
                count = self.starts[group + 1] - start
                yield start, pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
                continue
            for batch in self.parquet.iter_batches(_BATCH_ROWS, [group], columns=list(names), use_threads=False):
                yield start, batch
                start += batch.num_rows

    def read(self, names: Sequence[str]) -> pa.Table:
        """Whole columns."""
        groups = list(range(self.parquet.metadata.num_row_groups))
        self._fetch(names, groups)
        return self.parquet.read(columns=list(names), use_threads=False)

    def _fetch(self, names: Sequence[str], groups: Sequence[int]) -> None:
        ranges = []
        for group in groups:
            described = self.parquet.metadata.row_group(group)
            for name in names:
                for leaf in self._leaves[name]:
                    chunk = described.column(leaf)
                    start = chunk.data_page_offset
                    if chunk.has_dictionary_page:
                        start = min(start, chunk.dictionary_page_offset)
                    ranges.append((start, start + chunk.total_compressed_size))
        if self._remote is not None:
            self._remote.fetch(ranges)
        else:
            self._tally.bytes += sum(end - start for start, end in ranges)


@contextlib.contextmanager
def open_parquet(file: Stored, options: Mapping[str, str], tally: Tally) -> Iterator[ParquetInput]:
    """Open a plain Parquet file."""
    tally.files += 1
    local = local_path(file.path)
    if local is not None:
        with _closing(file.path, lambda: pq.ParquetFile(local, memory_map=True)) as parquet:
            tally.bytes += _footer(file)
            yield ParquetInput(parquet, tally, None)
        return
    remote = _Fetched(file, options, tally)
    with _closing(file.path, lambda: pq.ParquetFile(pa.PythonFile(remote, mode="r"))) as parquet:
        yield ParquetInput(parquet, tally, remote)


def local_path(path: str) -> str | None:
    """The path in the file system of what is there.

    >>> local_path("/a/b c"), local_path("file:///a/b"), local_path("s3://bucket/a")
    ('/a/b c', '/a/b', None)
    """
    path = path.removeprefix("file://")
    return None if "://" in path else path


def folder_value(path: str, name: str) -> str | None:
    """What the names of a file's folders say of a column: `year=2024/`.

    >>> folder_value("/a/p=x%20y/q=1/f.parquet", "p"), folder_value("/a/p=__HIVE_DEFAULT_PARTITION__/f", "p")
    ('x y', None)
    """
    for part in reversed(path.split("/")[:-1]):
        key, equals, value = part.partition("=")
        if equals and urllib.parse.unquote(key).lower() == name.lower():
            return None if value == "__HIVE_DEFAULT_PARTITION__" else urllib.parse.unquote(value)
    return None


DECRYPTED = "read_parquet(?, encryption_config={footer_key_value: ?::BLOB}, file_row_number=true"
"""The beginning of DuckDB's call for an encrypted file; `decrypted` gives the parameters."""


@contextlib.contextmanager
def decrypted(
    file: Stored, options: Mapping[str, str], tally: Tally
) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[Any]]]:
    """DuckDB, and what DECRYPTED needs to read an encrypted file: never in the text, which errors may repeat."""
    assert file.encryption_key is not None
    key = base64.b64decode(file.encryption_key)
    tally.files += 1
    tally.bytes += file.size
    with contextlib.ExitStack() as stack:
        local = local_path(file.path)
        if local is None:
            copy = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".parquet"))
            copy.write(open_store(_folder(file.path), options).get(file.path))
            copy.flush()
            local = copy.name
        elif not os.path.exists(local):
            raise _missing(file.path)
        conn = stack.enter_context(connection().cursor())
        conn.execute("SET TimeZone = 'UTC'")
        # DuckDB takes file names as patterns; brackets around a special character make it an ordinary one.
        yield conn, [re.sub(r"([*?\[])", r"[\1]", local), key]


class _Fetched(io.RawIOBase):
    """A remote file of which some ranges are here; reading elsewhere fetches more."""

    def __init__(self, file: Stored, options: Mapping[str, str], tally: Tally) -> None:
        super().__init__()
        self._path, self._size, self._tally = file.path, file.size, tally
        self._store = open_store(_folder(file.path), options)
        self._parts: list[tuple[int, int, bytes]] = []
        self._at = 0
        whole = self._size <= _SMALL_FILE
        self.fetch([(0 if whole else max(0, self._size - _footer(file)), self._size)])

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have these ranges here, with as few requests as makes sense."""
        missing = [r for r in ranges if r[0] < r[1] and self._part(*r) is None]
        if not missing:
            return
        for (start, end), data in zip(missing, self._store.get_ranges(self._path, missing), strict=True):
            self._parts.append((start, end, data))
            self._tally.bytes += end - start

    def _part(self, start: int, end: int) -> bytes | None:
        for first, last, data in self._parts:
            if first <= start and end <= last:
                return data[start - first : end - first]
        return None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        data = self._part(self._at, end)
        if data is None:
            self.fetch([(self._at, end)])
            data = self._part(self._at, end)
            assert data is not None
        self._at = end
        return data


def _footer(file: Stored) -> int:
    """The bytes at a file's end that describe it; a guess where the catalog does not know."""
    return min(file.size, file.footer_size + 8 if file.footer_size else 65_536)


def _folder(path: str) -> str:
    return path.rpartition("/")[0] + "/"


def _missing(path: str) -> MissingFile:
    return MissingFile(
        f"cannot read {path}: there is no such file",
        hint="The lake's catalog names it: was it cleaned up while this snapshot was still in use?",
    )


@contextlib.contextmanager
def _closing(path: str, make: Callable[[], pq.ParquetFile]) -> Iterator[pq.ParquetFile]:
    try:
        parquet = make()
    except FileNotFoundError:
        raise _missing(path) from None
    try:
        yield parquet
    finally:
        parquet.close()


def _count_leaves(type: pa.DataType) -> int:
    if isinstance(type, pa.BaseExtensionType):
        return 1
    return sum(_count_leaves(type.field(i).type) for i in range(type.num_fields)) if type.num_fields else 1
