"""The commit protocol of a lake, inside the caller's transaction.

DuckLake's mutual exclusion is the primary key of `ducklake_snapshot`: whoever inserts number n+1 owns the catalog until
the end of the transaction, everybody else waits, fails with a unique violation and starts again from the new head.

A refresh transaction sees the database as it was when it began, so it cannot see what others committed to the lake
since. A second connection, the *observer* (autocommit, same database), reads the committed head. Once the number is
taken nothing can change any more, and two things make sure that the caller's plan still holds:

- `require_untouched` asks the observer whether anybody changed the table since the plan was made;
- rows are changed by statements that must hit a known number of rows: PostgreSQL refuses to update what the
  transaction sees in an old version, and a row that it cannot see is not hit.

Both end in `LakeConflict`: roll back and try the whole refresh again.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure, UniqueViolation
from psycopg.pq import TransactionStatus

from runnel.errors import EngineBug, TransientError
from runnel.lake.format.statements import Row, execute, execute_many
from runnel.ports.sink import Conflict

if TYPE_CHECKING:
    from psycopg import Connection

    from runnel.lake.format.model import Lake

PATIENCE = 30.0
"""Seconds to wait for other writers' commits before giving up."""

_TOUCHED = re.compile(r'"(?:[^"]|"")*"|([a-z_]+):(\d+)')


class LakeConflict(Conflict):
    """Another writer changed what this commit is about: roll back and compute again."""


@dataclass(slots=True)
class Draft:
    """A snapshot under construction: its number is taken, its contents are written step by step."""

    conn: Connection[Any]
    observer: Connection[Any]
    lake: Lake
    id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    first_schema_version: int
    changes: list[str] = field(default_factory=list)

    def new_catalog_id(self) -> int:
        """The id of a new schema, table or view."""
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def new_file_id(self) -> int:
        """The id of a new data or delete file."""
        self.next_file_id += 1
        return self.next_file_id - 1

    def stats_changed(self) -> None:
        """Clients keep a table's statistics until this counter moves."""
        self.next_file_id += 1

    def schema_changed(self) -> None:
        """Clients keep the catalog's objects until the schema version moves; once per snapshot is enough."""
        self.schema_version = self.first_schema_version + 1

    def announce(self, *changes: str) -> None:
        """Say what the snapshot does, in DuckLake's words: other writers decide by it whether they conflict."""
        self.changes.extend(change for change in changes if change not in self.changes)

    def run(self, text: str, params: Sequence[Any] = ()) -> list[Row]:
        """Run a statement in the caller's transaction."""
        with _conflicts(self.lake):
            cursor = execute(self.conn, self.lake.schema, text, params)
            return cursor.fetchall() if cursor.description else []

    def run_many(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        with _conflicts(self.lake):
            execute_many(self.conn, self.lake.schema, text, rows)

    def change(self, expected: int, text: str, params: Sequence[Any] = ()) -> None:
        """Run an UPDATE or DELETE that must hit `expected` rows; others would have been changed by somebody else."""
        with _conflicts(self.lake):
            count = execute(self.conn, self.lake.schema, text, params).rowcount
        if count != expected:
            raise conflict(self.lake, f"{expected - count} of {expected} catalog rows were changed by another writer")

    def committed(self, text: str, params: Sequence[Any] = ()) -> list[Row]:
        """Ask for what others have committed, which the caller's transaction may be too old to see."""
        return execute(self.observer, self.lake.schema, text, params).fetchall()


def conflict(lake: Lake, cause: str) -> LakeConflict:
    return LakeConflict(
        f"lake {lake.name}: {cause}", hint="Nothing was written. The same work is done again on the new state."
    )


def begin_snapshot(
    conn: Connection[Any], observer: Connection[Any], lake: Lake, *, patience: float = PATIENCE
) -> Draft:
    """Take the next snapshot number; from here to the end of the transaction nobody else can commit to the lake.

    Call it late: other writers wait. Several snapshots in one transaction follow each other, each finished before
    the next begins.
    """
    if conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        raise EngineBug("a snapshot of a lake must be made inside a transaction")
    deadline = time.monotonic() + patience
    while True:
        head, version, next_catalog, next_file = _head(conn, observer, lake)
        try:
            with conn.transaction():
                _take(conn, lake, head + 1, (version, next_catalog, next_file), deadline - time.monotonic())
        except UniqueViolation:
            if time.monotonic() > deadline:
                raise _busy(lake, patience) from None
            time.sleep(random.uniform(0, 0.01))  # noqa: S311 - writers that lost together should not meet again
            continue
        except (LockNotAvailable, DeadlockDetected):
            raise _busy(lake, patience) from None
        return Draft(conn, observer, lake, head + 1, version, next_catalog, next_file, version)


def finish(draft: Draft, *, author: str | None = None, message: str | None = None, extra: str | None = None) -> int:
    """Write the snapshot's last rows; it becomes visible with the caller's COMMIT. Returns its number."""
    draft.change(
        1,
        "UPDATE {lake}.ducklake_snapshot SET snapshot_time = clock_timestamp(), schema_version = %s, "
        "next_catalog_id = %s, next_file_id = %s WHERE snapshot_id = %s",
        (draft.schema_version, draft.next_catalog_id, draft.next_file_id, draft.id),
    )
    draft.run(
        "INSERT INTO {lake}.ducklake_snapshot_changes "
        "(snapshot_id, changes_made, author, commit_message, commit_extra_info) VALUES (%s, %s, %s, %s, %s)",
        (draft.id, ",".join(draft.changes), author, message, extra),
    )
    return draft.id


@contextmanager
def snapshot(
    conn: Connection[Any],
    observer: Connection[Any],
    lake: Lake,
    *,
    author: str | None = None,
    message: str | None = None,
    extra: str | None = None,
) -> Iterator[Draft]:
    """Take a snapshot number, let the body fill the snapshot, write its last rows."""
    draft = begin_snapshot(conn, observer, lake)
    yield draft
    finish(draft, author=author, message=message, extra=extra)


def touched_since(conn: Connection[Any], lake: Lake, table_id: int, since: int) -> list[tuple[int, str]]:
    """What the snapshots after `since` say about a table: (snapshot, verb). Ask with the observer."""
    rows = execute(
        conn,
        lake.schema,
        "SELECT snapshot_id, changes_made FROM {lake}.ducklake_snapshot_changes WHERE snapshot_id > %s ORDER BY 1",
        (since,),
    )
    return [(number, verb) for number, changes in rows for verb, id in mentions(changes or "") if id == table_id]


def mentions(changes: str) -> Iterator[tuple[str, int]]:
    """The verbs about numbered objects in a snapshot's list of changes; created objects are named, not numbered.

    >>> list(mentions('created_table:"main"."a,dropped_table:9",inserted_into_table:3,altered_view:4'))
    [('inserted_into_table', 3), ('altered_view', 4)]
    """
    for found in _TOUCHED.finditer(changes):
        if found[1]:
            yield found[1], int(found[2])


def require_untouched(draft: Draft, table_id: int, since: int) -> None:
    """Refuse to go on if anybody else changed the table after snapshot `since`, where the caller's plan was made."""
    if not draft.committed("SELECT 1 FROM {lake}.ducklake_snapshot WHERE snapshot_id = %s", (since,)):
        raise conflict(draft.lake, f"snapshot {since} has expired meanwhile")
    touched = touched_since(draft.observer, draft.lake, table_id, since)
    if touched:
        number, verb = touched[-1]
        raise conflict(draft.lake, f"another writer's snapshot {number} changed table {table_id} ({verb})")


def _head(conn: Connection[Any], observer: Connection[Any], lake: Lake) -> tuple[int, int, int, int]:
    """The newest snapshot: committed by anybody, or made earlier in this very transaction."""
    newest = (
        "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM {lake}.ducklake_snapshot "
        "ORDER BY snapshot_id DESC LIMIT 1"
    )
    committed = execute(observer, lake.schema, newest).fetchone()
    own = execute(conn, lake.schema, newest).fetchone()
    rows: list[tuple[int, int, int, int]] = [row for row in (committed, own) if row is not None]
    if not rows:
        raise conflict(lake, f"the catalog in schema {lake.schema} has no snapshot")
    return max(rows)


def _take(conn: Connection[Any], lake: Lake, number: int, counters: tuple[int, int, int], patience: float) -> None:
    wait = f"{max(1, int(patience * 1000))}ms"
    [(before,)] = execute(conn, lake.schema, "SELECT current_setting('lock_timeout')").fetchall()
    execute(conn, lake.schema, "SELECT set_config('lock_timeout', %s, true)", (wait,))
    execute(
        conn,
        lake.schema,
        "INSERT INTO {lake}.ducklake_snapshot VALUES (%s, clock_timestamp(), %s, %s, %s)",
        (number, *counters),
    )
    execute(conn, lake.schema, "SELECT set_config('lock_timeout', %s, true)", (before,))


def _busy(lake: Lake, patience: float) -> TransientError:
    return TransientError(
        f"lake {lake.name}: other writers kept the catalog busy for {patience:g} seconds",
        hint="See pg_stat_activity for a transaction that has taken a snapshot number and does not end.",
    )


@contextmanager
def _conflicts(lake: Lake) -> Iterator[None]:
    try:
        yield
    except (SerializationFailure, UniqueViolation, DeadlockDetected) as error:
        raise conflict(lake, (error.diag.message_primary or "serialization failure")) from error
    except psycopg.errors.UndefinedTable as error:
        raise conflict(lake, f"a table of the catalog is gone: {error.diag.message_primary}") from error
