"""Inlined rows and inlined deletes of a table, moved from the catalog to files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from runnel.lake.format.catalog import data_files, head, inlined_deletes, inlined_tables, oldest
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.format.statements import execute
from runnel.lake.read.inlined import InlinedVersions, inlined_versions
from runnel.lake.read.input import Tally
from runnel.lake.read.reader import NEVER, deletions
from runnel.lake.upkeep.compact import Change, Workshop, scans_of, state_of
from runnel.lake.upkeep.lives import Lives, moved_name, write_lives
from runnel.lake.upkeep.settings import Report, Settings
from runnel.lake.write.deletions import FOR_BOTH, Deletions, write_delete_file
from runnel.lake.write.parquet import can_write
from runnel.model.names import quote

if TYPE_CHECKING:
    from psycopg import Connection

AT_ONCE = 100_000
"""Rows that one flush moves; they are in memory meanwhile, and the rest has to wait for the next."""


def flush(workshop: Workshop, settings: Settings, report: Report) -> bool:
    """Move inlined rows and inlined deletes of a table to files."""
    lake, table, observer = workshop.lake, workshop.table, workshop.observer
    moved = (0, 0, False)

    def prepare() -> Sequence[Change]:
        nonlocal moved
        base = head(observer, lake)
        upto = _upto(observer, lake, table, base)
        rows = [each for each in inlined_versions(observer, lake, table.id, upto) if can_write(each.columns)]
        deleted = inlined_deletes(observer, lake, table.id, base)
        moved = sum(len(each.numbers) for each in rows), sum(len(found) for found in deleted.values()), upto < base
        if moved[0] + moved[1] < max(1, settings.flush_rows):
            return ()
        files = [file for file in data_files(observer, lake, table, base) if file.id in deleted]
        since, shelf = oldest(observer, lake), workshop.shelf
        new = [made for each in rows for made in workshop.uploads(write_lives(_lives(each), shelf, since))]
        state = state_of(observer, lake, table, [file.id for file in files])
        deletes = []
        for scan in scans_of(observer, lake, table, files, ()):
            deaths = Deletions(*deletions(scan, Tally()))
            name = moved_name(FOR_BOTH)
            workshop.uploaded.append(table.path + name)
            written = write_delete_file(
                shelf.store, table.path, scan.file.path, deaths, encrypt=lake.encrypted, name=name
            )
            deletes.append((scan.file, written, (int(deaths.snapshots.min()), int(deaths.snapshots.max()))))
        return [Change(lake, table, tuple(new), state=state, deletes=tuple(deletes), inlined=tuple(rows))]

    changed = False
    while workshop.commit(prepare, f"flush inlined rows of {table.schema}.{table.name}"):
        changed = True
        report.flushed_rows += moved[0]
        report.flushed_deletes += moved[1]
        if not moved[2]:
            break
    return changed


def _lives(inlined: InlinedVersions) -> Lives:
    """The rows of a table of the catalog."""
    return Lives(
        inlined.columns,
        lambda: [inlined.arrays],
        np.array([row_id for row_id, _, _ in inlined.numbers], dtype=np.int64),
        np.array([born for _, born, _ in inlined.numbers], dtype=np.int64),
        np.array([NEVER if died is None else died for _, _, died in inlined.numbers], dtype=np.int64),
    )


def _upto(conn: Connection[Any], lake: Lake, table: LakeTable, base: int) -> int:
    """The last snapshot whose inlined rows are moved now: not too many rows, but those of one snapshot at least."""
    for inlined in inlined_tables(conn, lake, table.id):
        name = quote(inlined.name).replace("%", "%%")
        [(first, beyond)] = execute(
            conn,
            lake.schema,
            f"SELECT min(begin_snapshot), (SELECT begin_snapshot FROM {{lake}}.{name} ORDER BY 1 OFFSET %s LIMIT 1) "
            f"FROM {{lake}}.{name}",
            (AT_ONCE,),
        ).fetchall()
        if beyond is not None:
            base = min(base, max(first, beyond - 1))
    return base
