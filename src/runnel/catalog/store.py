"""Typed reading and writing of the catalog, for the engine.

Functions take an open psycopg connection and never commit: the caller decides what belongs to one
transaction. Statements are constants and values travel as parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from runnel.catalog.rows import (
    CapturedColumn,
    Definition,
    Dependency,
    Json,
    Refresh,
    StreamTable,
    Tracking,
)
from runnel.errors import EngineBug
from runnel.model.prepared import PlansKept

Connection = psycopg.Connection[Any]

# Moments that Python cannot tell are none: one such value must not hide the other rows.
_MOMENTS = ", ".join(
    f"CASE WHEN {name} BETWEEN '1970-01-02' AND '9999-01-01' THEN {name} END AS {name}"
    for name in ("data_timestamp", "last_refresh_at", "retry_at", "created_at", "updated_at")
)
_STREAM_TABLES = f"""
SELECT
    pgt_id, pgt_relid, pgt_schema, pgt_name, owner, original_query, defining_query, schedule, refresh_mode,
    effective_mode, mode_reason, status, is_populated, needs_reinit, settings, frontier, version,
    definition_version, uses_clock, consecutive_errors, last_error, ducklake_expired AS forgotten, drift, tested,
    cdc_mode,
    {_MOMENTS}
FROM pgtrickle.pgt_stream_tables
"""  # noqa: S608  (made of the names above)
SELECT_STREAM_TABLES = f"{_STREAM_TABLES} WHERE pgt_id = ANY(%s) ORDER BY pgt_id".encode()
SELECT_DEPENDENCIES = """
SELECT pgt_id, source_relid, source_type, source_name, columns_used, column_types, source_pgt_id
FROM pgtrickle.pgt_dependencies ORDER BY pgt_id, source_relid
"""
SELECT_TRACKED = "SELECT source_relid FROM pgtrickle.pgt_change_tracking"
SELECT_CATALOG = f"{_STREAM_TABLES} ORDER BY pgt_id; {SELECT_TRACKED}; {SELECT_DEPENDENCIES}".encode()
SELECT_TABLES_READ = """
SELECT DISTINCT source_pgt_id FROM pgtrickle.pgt_dependencies WHERE source_pgt_id = ANY(%s)
"""
INSERT_STREAM_TABLE = """
INSERT INTO pgtrickle.pgt_stream_tables (
    pgt_relid, pgt_schema, pgt_name, owner, original_query, defining_query, schedule, refresh_mode,
    effective_mode, mode_reason, status, settings, uses_clock)
VALUES (
    %(pgt_relid)s, %(pgt_schema)s, %(pgt_name)s, %(owner)s, %(original_query)s, %(defining_query)s,
    %(schedule)s, %(refresh_mode)s, %(effective_mode)s, %(mode_reason)s, %(status)s, %(settings)s,
    %(uses_clock)s)
RETURNING pgt_id
"""
UPDATE_DEFINITION = """
UPDATE pgtrickle.pgt_stream_tables SET
    original_query = %(original_query)s, defining_query = %(defining_query)s, schedule = %(schedule)s,
    refresh_mode = %(refresh_mode)s, effective_mode = %(effective_mode)s, mode_reason = %(mode_reason)s,
    settings = %(settings)s, uses_clock = %(uses_clock)s, pgt_relid = coalesce(%(pgt_relid)s, pgt_relid),
    needs_reinit = needs_reinit OR %(reinit)s,
    definition_version = definition_version + 1, updated_at = now()
WHERE pgt_id = %(pgt_id)s
"""
DELETE_DEPENDENCIES = "DELETE FROM pgtrickle.pgt_dependencies WHERE pgt_id = %s"
INSERT_DEPENDENCY = """
INSERT INTO pgtrickle.pgt_dependencies
    (pgt_id, source_relid, source_type, source_name, columns_used, column_types, source_pgt_id)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
SET_STATUS = """
UPDATE pgtrickle.pgt_stream_tables
SET status = %s, last_error = %s, retry_at = NULL, updated_at = now(),
    consecutive_errors = CASE WHEN %s THEN 0 ELSE consecutive_errors END
WHERE pgt_id = %s
"""
SET_NEEDS_REINIT = """
UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = %s, updated_at = now() WHERE pgt_id = %s
"""
# A stream table that DDL put in ERROR, or a user suspended, while its refresh ran stays as they left it.
ADVANCE = """
UPDATE pgtrickle.pgt_stream_tables SET
    frontier = %(frontier)s, version = %(version)s, data_timestamp = %(data_timestamp)s,
    last_refresh_at = clock_timestamp(),
    is_populated = true,
    status = CASE WHEN status = 'INITIALIZING' THEN 'ACTIVE' ELSE status END,
    needs_reinit = needs_reinit AND NOT (%(rebuilt)s AND status <> 'ERROR'),
    drift = CASE WHEN %(rebuilt)s AND status <> 'ERROR' THEN NULL ELSE drift END,
    consecutive_errors = 0, retry_at = NULL,
    last_error = CASE WHEN status = 'ERROR' THEN last_error END, updated_at = now()
WHERE pgt_id = %(pgt_id)s
"""
NEW_REFRESH_ID = "SELECT nextval(pg_get_serial_sequence('pgtrickle.pgt_refresh_history', 'refresh_id'))"
INSERT_SUCCESS = """
INSERT INTO pgtrickle.pgt_refresh_history (
    refresh_id, pgt_id, data_timestamp, start_time, end_time, action, status, initiated_by, changes_read, rows_inserted,
    rows_deleted, reason, timings, spark_jobs, rows_read, lake_io, work)
OVERRIDING SYSTEM VALUE VALUES (
    coalesce(%(refresh_id)s::int8, nextval(pg_get_serial_sequence('pgtrickle.pgt_refresh_history', 'refresh_id'))),
    %(pgt_id)s, %(data_timestamp)s, %(start_time)s, clock_timestamp(), %(action)s, 'COMPLETED',
    %(initiated_by)s, %(changes_read)s, %(rows_inserted)s, %(rows_deleted)s, %(reason)s,
    %(timings)s, %(spark_jobs)s, %(rows_read)s, %(effort)s, %(work)s)
RETURNING refresh_id
"""
RECORD_AND_ADVANCE = (
    f"WITH recorded AS ({INSERT_SUCCESS}) {ADVANCE} RETURNING (SELECT refresh_id FROM recorded)".encode()  # noqa: S608
)
ADD_PUBLICATION = """
UPDATE pgtrickle.pgt_refresh_history h
SET timings = coalesce(timings, '{}') || %(timings)s, reason = nullif(concat_ws('; ', reason, %(reason)s::text), ''),
    end_time = clock_timestamp(), spark_jobs = coalesce(spark_jobs, 0) + (%(work)s::jsonb ->> 'jobs')::integer,
    work = (SELECT jsonb_object_agg(w.name, coalesce((h.work ->> w.name)::int8, 0) + w.value::int8)
            FROM jsonb_each_text(%(work)s) AS w (name, value))
WHERE refresh_id = %(refresh_id)s
"""
INSERT_FAILURE = """
INSERT INTO pgtrickle.pgt_refresh_history (
    pgt_id, data_timestamp, start_time, end_time, action, status, initiated_by, changes_read, reason,
    error_message, timings, spark_jobs)
VALUES (
    %(pgt_id)s, %(data_timestamp)s, %(start_time)s, clock_timestamp(), %(action)s, 'FAILED', %(initiated_by)s,
    %(changes_read)s, %(reason)s, %(error)s, %(timings)s, %(spark_jobs)s)
RETURNING refresh_id
"""
INSERT_ERROR_TEXT = "INSERT INTO pgtrickle.pgt_error_texts (refresh_id, message) VALUES (%s, %s)"
SELECT_ERROR_TEXT = """
SELECT pgtrickle._last_error(pgt_id, last_error) FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s
"""
COUNT_FAILURE = """
UPDATE pgtrickle.pgt_stream_tables SET
    consecutive_errors = least(consecutive_errors, 1000000) + 1, last_error = %(error)s, updated_at = now(),
    retry_at = clock_timestamp() + %(backoff)s,
    status = CASE WHEN consecutive_errors >= %(suspend_after)s - 1 AND status IN ('ACTIVE', 'INITIALIZING')
                  THEN 'SUSPENDED' ELSE status END
WHERE pgt_id = %(pgt_id)s
RETURNING consecutive_errors, status
"""
PRUNE_HISTORY = """
DELETE FROM pgtrickle.pgt_refresh_history h USING (
    SELECT pgt_id, refresh_id, row_number() OVER (PARTITION BY pgt_id ORDER BY refresh_id DESC) AS age
    FROM pgtrickle.pgt_refresh_history) old
WHERE old.refresh_id = h.refresh_id AND old.age > %s
"""
DELETE_STREAM_TABLE = "DELETE FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s"
BEAT = """
INSERT INTO pgtrickle.pgt_heartbeat (seen_at, prepared_plans, pace) VALUES (clock_timestamp(), %s, %s)
ON CONFLICT (singleton) DO UPDATE SET seen_at = excluded.seen_at, prepared_plans = excluded.prepared_plans,
    pace = excluded.pace
"""
SELECT_TRACKING = """
SELECT source_relid, buffer, columns, relations, ancestors FROM pgtrickle.pgt_change_tracking
"""
STAY_AWAKE = "SELECT pgtrickle._stay_awake()"
DOZE = "SELECT pgtrickle._doze()"
NEW_XID = "SELECT pg_current_xact_id()::text"
SETTLED = "SELECT pgtrickle._settled(%s::xid8)"


# -- stream tables -------------------------------------------------------------------------------------------


def load_catalog(conn: Connection) -> tuple[list[StreamTable], frozenset[int], list[Dependency]]:
    """All stream tables, oldest first, the captured tables by their oids, and every source of every stream table."""
    # One round trip: this is read several times in every refresh.
    cursor: psycopg.Cursor[Any] = conn.cursor(row_factory=class_row(StreamTable))
    with cursor:
        tables = cursor.execute(SELECT_CATALOG).fetchall()
        cursor.row_factory = tuple_row
        cursor.nextset()
        tracked = frozenset(int(row[0]) for row in cursor)
        cursor.nextset()
        return tables, tracked, [_dependency(row) for row in cursor]


def load_stream_tables(conn: Connection, tables: Sequence[int]) -> list[StreamTable]:
    """These stream tables, oldest first."""
    with conn.cursor(row_factory=class_row(StreamTable)) as cur:
        return cur.execute(SELECT_STREAM_TABLES, (list(tables),)).fetchall()


def load_stream_table(conn: Connection, pgt_id: int) -> StreamTable | None:
    """One stream table, or None when it was dropped."""
    with conn.cursor(row_factory=class_row(StreamTable)) as cur:
        return cur.execute(SELECT_STREAM_TABLES, ([pgt_id],)).fetchone()


def tables_read(conn: Connection, tables: Sequence[int]) -> set[int]:
    """Those of these stream tables that another one reads."""
    return {int(row[0]) for row in conn.execute(SELECT_TABLES_READ, (list(tables),))}


def _dependency(row: Sequence[Any]) -> Dependency:
    return Dependency(
        pgt_id=row[0],
        source_relid=row[1],
        source_type=row[2],
        source_name=row[3],
        columns_used=tuple(row[4]),
        column_types=tuple(row[5]),
        source_pgt_id=row[6],
    )


def set_forgotten_policy(conn: Connection, pgt_id: int, policy: str) -> None:
    """What a stream table does when a source no longer knows what changed since the version it stands at."""
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET ducklake_expired = %s WHERE pgt_id = %s", (policy, pgt_id))


def insert_stream_table(
    conn: Connection,
    *,
    relid: int,
    schema: str,
    name: str,
    owner: int,
    definition: Definition,
    status: str = "INITIALIZING",
) -> int:
    """Record a new stream table whose storage exists, and return its id."""
    row = conn.execute(
        INSERT_STREAM_TABLE,
        {
            **asdict(definition),
            "settings": Jsonb(definition.settings),
            "pgt_relid": relid,
            "pgt_schema": schema,
            "pgt_name": name,
            "owner": owner,
            "status": status,
        },
    ).fetchone()
    return int(_first(row))


def update_definition(
    conn: Connection, pgt_id: int, definition: Definition, *, relid: int | None = None, reinit: bool = False
) -> None:
    """Replace the definition; give `relid` if the storage was replaced, `reinit` if rows must be rebuilt."""
    values = {**asdict(definition), "settings": Jsonb(definition.settings)}
    conn.execute(UPDATE_DEFINITION, {**values, "pgt_id": pgt_id, "pgt_relid": relid, "reinit": reinit})


def replace_dependencies(conn: Connection, pgt_id: int, dependencies: Iterable[Dependency]) -> None:
    """Record what a stream table reads; the ids inside the records are ignored in favour of `pgt_id`."""
    conn.execute(DELETE_DEPENDENCIES, (pgt_id,))
    with conn.cursor() as cur:
        for d in dependencies:
            used, types = list(d.columns_used), list(d.column_types)
            row = (pgt_id, d.source_relid, d.source_type, d.source_name, used, types, d.source_pgt_id)
            cur.execute(INSERT_DEPENDENCY, row)


def set_status(conn: Connection, pgt_id: int, status: str, error: str | None = None) -> None:
    """Set the status and its reason; without a reason the count of failures starts anew."""
    conn.execute(SET_STATUS, (status, error, error is None, pgt_id))


def set_needs_reinit(conn: Connection, pgt_id: int, needed: bool) -> None:
    """Ask for, or take back, a rebuild from scratch."""
    conn.execute(SET_NEEDS_REINIT, (needed, pgt_id))


def delete_stream_table(conn: Connection, pgt_id: int) -> None:
    """Forget a stream table, its dependencies and its history; its tables are the caller's to drop."""
    conn.execute(DELETE_STREAM_TABLE, (pgt_id,))


# -- refreshes -----------------------------------------------------------------------------------------------


def advance(
    conn: Connection,
    pgt_id: int,
    frontier: Json,
    version: int,
    data_timestamp: datetime | None,
    *,
    rebuilt: bool = False,
) -> None:
    """Move the frontier, in the transaction that changed the rows; `rebuilt` ends a needed reinitialisation.

    Call it late in that transaction: the row lock it takes is one that DDL on a source may wait for.
    """
    values = {"version": version, "data_timestamp": data_timestamp, "rebuilt": rebuilt, "pgt_id": pgt_id}
    conn.execute(ADVANCE, {**values, "frontier": Jsonb(frontier)})


def new_refresh_id(conn: Connection) -> int:
    """The number of a refresh that is not in the history yet."""
    return int(_first(conn.execute(NEW_REFRESH_ID).fetchone()))


def record_success(conn: Connection, pgt_id: int, refresh: Refresh, refresh_id: int | None = None) -> int:
    """Add a finished refresh to the history and return its id; `advance` resets the counters."""
    return int(_first(conn.execute(INSERT_SUCCESS, _recorded(pgt_id, refresh, refresh_id)).fetchone()))


def _recorded(pgt_id: int, refresh: Refresh, refresh_id: int | None) -> dict[str, Any]:
    json = {key: _jsonb(getattr(refresh, key)) for key in ("timings", "rows_read", "effort", "work")}
    # Not `asdict`, which copies what is inside, too.
    plain = {each.name: getattr(refresh, each.name) for each in fields(refresh)}
    return {**plain, **json, "pgt_id": pgt_id, "refresh_id": refresh_id}


def record_and_advance(
    conn: Connection,
    pgt_id: int,
    refresh: Refresh,
    refresh_id: int | None,
    frontier: Json,
    version: int,
    *,
    rebuilt: bool,
) -> int | None:
    """`record_success` and `advance` in one round trip; the number of the refresh, if its table is still there."""
    values = {**_recorded(pgt_id, refresh, refresh_id), "version": version, "rebuilt": rebuilt}
    row = conn.execute(RECORD_AND_ADVANCE, {**values, "frontier": Jsonb(frontier)}).fetchone()
    return None if row is None else int(row[0])


def add_publication(
    conn: Connection, refresh_id: int, timings: Mapping[str, float], reason: str | None, work: Mapping[str, int]
) -> None:
    """Add a publication that took place after its refresh was recorded."""
    values = {"refresh_id": refresh_id, "timings": Jsonb(dict(timings)), "reason": reason, "work": Jsonb(dict(work))}
    conn.execute(ADD_PUBLICATION, values)


def record_failure(
    conn: Connection,
    pgt_id: int,
    refresh: Refresh,
    error: str,
    *,
    public: str | None = None,
    backoff: timedelta,
    suspend_after: int,
) -> tuple[int, str, int | None]:
    """Record a failed refresh and when to try again: failures in a row, the resulting status, and the refresh.

    `public` is what everybody may read in place of the error, which then only the owner's role sees.
    """
    values = {**asdict(refresh), "timings": _jsonb(refresh.timings), "pgt_id": pgt_id, "error": public or error}
    counted = conn.execute(COUNT_FAILURE, {**values, "backoff": backoff, "suspend_after": suspend_after}).fetchone()
    if counted is None:
        return 0, "DROPPED", None  # it was dropped while it failed: nobody to tell
    refresh_id = _first(conn.execute(INSERT_FAILURE, values).fetchone())
    if public is not None:
        conn.execute(INSERT_ERROR_TEXT, (refresh_id, error))
    return int(counted[0]), str(counted[1]), int(refresh_id)


def whole_error(conn: Connection, pgt_id: int) -> str | None:
    """The last error of a stream table as its owner may read it."""
    row = conn.execute(SELECT_ERROR_TEXT, (pgt_id,)).fetchone()
    return None if row is None else row[0]


def prune_history(conn: Connection, keep: int) -> int:
    """Keep the newest `keep` refreshes of each stream table."""
    return conn.execute(PRUNE_HISTORY, (keep,)).rowcount


def beat(conn: Connection, prepared: PlansKept, pace: Mapping[str, float]) -> None:
    """Say that the engine's loop has come round, how many plans it keeps, and whether it keeps up."""
    conn.execute(BEAT, (Jsonb(prepared.as_json()), Jsonb(dict(pace))))


# -- capture -------------------------------------------------------------------------------------------------


def change_tracking(conn: Connection) -> dict[int, Tracking]:
    """How each captured source is captured, by its oid."""
    return {row[0]: _tracking(row) for row in conn.execute(SELECT_TRACKING)}


def stay_awake(conn: Connection) -> None:
    """Writers need not notify: the engine promises to look for changes by itself."""
    conn.execute(STAY_AWAKE)


def doze(conn: Connection) -> str:
    """Writers notify again; returns the transaction id to hand to `settled`.

    Look for changes once more after this, and keep looking now and then until `settled`.
    """
    if not conn.autocommit or conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        # The id must be taken after the gate is shut, so the two need transactions of their own.
        raise EngineBug("doze needs a connection in autocommit mode")
    conn.execute(DOZE)
    return str(_first(conn.execute(NEW_XID).fetchone()))


def settled(conn: Connection, xid: str) -> bool:
    """Whether every transaction that may have written without notifying has ended."""
    return bool(_first(conn.execute(SETTLED, (xid,)).fetchone()))


def _tracking(row: Sequence[Any]) -> Tracking:
    columns = tuple(CapturedColumn(name=c["name"], attnum=c["attnum"], type=c["type"]) for c in row[2])
    return Tracking(
        source_relid=row[0], buffer=row[1], columns=columns, relations=tuple(row[3]), ancestors=tuple(row[4])
    )


def _jsonb(value: object) -> Jsonb | None:
    return None if value is None else Jsonb(value)


def _first(row: Sequence[Any] | None) -> Any:
    if row is None:
        raise EngineBug("a statement that always returns a row returned none")
    return row[0]
