"""What the lake holds of a published table now, and where in its files given rows are.

All questions go to the observer: the refresh transaction may be too old to see what others have committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from runnel.lake.format import catalog
from runnel.lake.format.model import DataFile, DeleteFile, Lake, LakeTable
from runnel.lake.write.commit import touched_since
from runnel.model.names import quote
from runnel.sinks.ducklake.catalog import LakeSink
from runnel.sinks.ducklake.stored import RowIds
from runnel.sinks.numbers import Ints, Numbers

Connection = psycopg.Connection[Any]

_COMPACTION = {"merge_adjacent", "rewrite_delete", "compacted_table", "inline_flush", "flushed_inlined"}
_ASKED = 100_000
"""Row ids in one question."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A published table as the lake has it."""

    head: int
    table: LakeTable | None
    has_view: bool = False
    next_row_id: int = 0
    rows: int = 0
    touched: bool = False
    """Whether a snapshot since the last publication says that it changed rows."""


@dataclass(slots=True)
class FileDeletes:
    """Rows to delete in one data file."""

    file: DataFile
    positions: Ints
    """Ascending."""
    old: DeleteFile | None = None
    inlined: int = 0
    """Positions deleted in the catalog itself."""

    @property
    def all_gone(self) -> bool:
        """Whether the file has no row left and nothing else remembers some of them as deleted earlier."""
        return self.old is None and not self.inlined and len(self.positions) == self.file.record_count


@dataclass(frozen=True, slots=True)
class Places:
    """Where the rows to delete are."""

    files: tuple[FileDeletes, ...]
    inlined: tuple[int, ...] = ()
    """Row ids of rows that are kept in the catalog."""
    missing: int = 0
    """How many rows the lake does not have."""


@dataclass
class KnownTables:
    """Tables as they were last seen; nobody can change one without raising the lake's schema version."""

    _seen: dict[tuple[str, str, str | None, int], tuple[int, LakeTable]] = field(default_factory=dict)

    def look(self, observer: Connection, lake: Lake, table_id: int) -> tuple[int, LakeTable | None]:
        """The lake's newest snapshot, and the table in it."""
        [(head, version)] = catalog.query(
            observer,
            lake,
            "SELECT snapshot_id, schema_version FROM {lake}.ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1",
        )
        key = (lake.schema, lake.data_path, lake.dsn, table_id)
        seen = self._seen.get(key)
        if seen is not None and seen[0] == version:
            return head, seen[1]
        table = catalog.table_by_id(observer, lake, table_id, head)
        if table is not None:
            self._seen[key] = version, table
        return head, table


def stand(observer: Connection, lake: Lake, sink: LakeSink, known: KnownTables) -> Standing:
    """Look at a published table."""
    table_id = sink.table_id
    assert table_id is not None
    head, table = known.look(observer, lake, table_id)
    if table is None:
        return Standing(head, None)
    [(next_row_id, rows, has_view, inlined_deletes)] = catalog.query(
        observer,
        lake,
        "SELECT coalesce((SELECT max(next_row_id) FROM {lake}.ducklake_table_stats WHERE table_id = %(t)s), 0)::int8,"
        " (SELECT coalesce(sum(f.record_count - coalesce(d.delete_count, 0)), 0)::int8 FROM {lake}.ducklake_data_file f"
        "  LEFT JOIN {lake}.ducklake_delete_file d ON d.data_file_id = f.data_file_id AND d.end_snapshot IS NULL"
        "  WHERE f.table_id = %(t)s AND f.end_snapshot IS NULL),"
        " EXISTS (SELECT FROM {lake}.ducklake_view v JOIN {lake}.ducklake_schema s USING (schema_id)"
        "  WHERE v.end_snapshot IS NULL AND s.end_snapshot IS NULL"
        "  AND v.view_name = %(view)s AND s.schema_name = %(schema)s),"
        " to_regclass(format('%%I.%%I', %(place)s::text, %(deletes)s::text)) IS NOT NULL",
        t=table_id,
        view=sink.view_name,
        schema=sink.lake_schema,
        place=lake.schema,
        deletes=f"ducklake_inlined_delete_{table_id}",
    )
    for inlined in catalog.inlined_tables(observer, lake, table_id):
        rows += _count(observer, lake, inlined.name, "end_snapshot IS NULL")
    if inlined_deletes:
        rows -= _count(
            observer,
            lake,
            f"ducklake_inlined_delete_{table_id}",
            f"file_id IN (SELECT data_file_id FROM {quote(lake.schema)}.ducklake_data_file WHERE end_snapshot IS NULL)",
        )
    touched = sink.snapshot_id is not None and _touched(observer, lake, table_id, sink.snapshot_id)
    return Standing(head, table, has_view, next_row_id, rows, touched)


def _touched(observer: Connection, lake: Lake, table_id: int, since: int) -> bool:
    """Whether anybody changed rows; compaction only moves them."""
    verbs: dict[int, set[str]] = defaultdict(set)
    for snapshot, verb in touched_since(observer, lake, table_id, since):
        verbs[snapshot].add(verb)
    return any(not said & _COMPACTION for said in verbs.values())


def locate(
    observer: Connection,
    lake: Lake,
    table: LakeTable,
    head: int,
    row_ids: Ints,
    embedded: Callable[[DataFile], RowIds | None],
) -> Places:
    """Find rows by their ids (ascending). `embedded` reads a file's own column of row ids, or says that it has none."""
    if not len(row_ids):
        return Places(())
    files = catalog.data_files(observer, lake, table, head)
    positions, parts = Numbers(), []
    left = np.ones(len(row_ids), dtype=np.bool_)
    for file in sorted(files, key=lambda f: f.row_id_start is None):
        if positions.count == len(row_ids):
            break
        here = _positions(file, row_ids, left, embedded)
        if len(here):
            parts.append((file, positions.count, positions.count + len(here)))
            positions.add(here)
    every = positions.all()
    found = {file.id: FileDeletes(file, every[start:end]) for file, start, end in parts}
    _attach_deletes(observer, lake, table, head, found)
    rest = row_ids[left]
    inlined = _inlined(observer, lake, table, rest) if len(rest) else set()
    return Places(tuple(found.values()), tuple(sorted(inlined)), len(rest) - len(inlined))


def _positions(
    file: DataFile, row_ids: Ints, left: npt.NDArray[np.bool_], embedded: Callable[[DataFile], RowIds | None]
) -> Ints:
    """Where in a file rows are, of those that are `left`; they are not left any more."""
    own = embedded(file) if file.row_id_start is None or file.partial_max is not None else None
    if own is None:
        if file.row_id_start is None:
            return np.empty(0, dtype=np.int64)
        low, high = np.searchsorted(row_ids, (file.row_id_start, file.row_id_start + file.record_count))
        chosen = left[low:high].copy()
        left[low:high] = False
        return row_ids[low:high][chosen] - file.row_id_start
    low, high = np.searchsorted(row_ids, own.bounds)
    wanted = np.flatnonzero(left[low:high])
    here, positions = own.find(row_ids[low:high][wanted])
    left[low + wanted[here]] = False
    return positions


def _attach_deletes(
    observer: Connection, lake: Lake, table: LakeTable, head: int, found: dict[int, FileDeletes]
) -> None:
    if not found:
        return
    for old in catalog.delete_files(observer, lake, table, head):
        if old.data_file_id in found:
            found[old.data_file_id].old = old
    name = f"ducklake_inlined_delete_{table.id}"
    if _exists(observer, lake, name):
        counts: dict[int, int] = defaultdict(int)
        text = f"SELECT file_id, count(*) FROM {_quoted(lake)}.{name} WHERE file_id = ANY(%s) GROUP BY 1"
        for file_id, count in observer.execute(text.encode(), (list(found),)):
            counts[file_id] = count
        for file_id, deletes in found.items():
            deletes.inlined = counts[file_id]


def _inlined(observer: Connection, lake: Lake, table: LakeTable, row_ids: Ints) -> set[int]:
    found: set[int] = set()
    for inlined in catalog.inlined_tables(observer, lake, table.id):
        place = f"{_quoted(lake)}.{_escaped(inlined.name)}"
        text = f"SELECT row_id FROM {place} WHERE row_id = ANY(%s) AND end_snapshot IS NULL"
        for start in range(0, len(row_ids), _ASKED):
            wanted = row_ids[start : start + _ASKED].tolist()
            found.update(row[0] for row in observer.execute(text.encode(), (wanted,)))
    return found


def _exists(observer: Connection, lake: Lake, name: str) -> bool:
    row = observer.execute("SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))", (lake.schema, name)).fetchone()
    return row is not None and row[0] is not None


def _count(observer: Connection, lake: Lake, name: str, condition: str) -> int:
    text = f"SELECT count(*) FROM {quote(lake.schema)}.{quote(name)} WHERE {condition}"
    row = observer.execute(text.encode()).fetchone()
    assert row is not None
    return int(row[0])


def _quoted(lake: Lake) -> str:
    return _escaped(lake.schema)


def _escaped(name: str) -> str:
    return quote(name).replace("%", "%%")
