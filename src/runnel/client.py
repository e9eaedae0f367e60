"""The Python way in: a thin client over the SQL functions of schema `pgtrickle`.

Whatever this module can do, psql can do too; it adds types and turns the server's errors into RunnelError.
A client needs no Spark and no Java, only a connection to the database.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, LiteralString, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, tuple_row
from psycopg.types.json import Jsonb

from runnel.answers import (
    AttachedLake,
    Check,
    LakeInfo,
    LakeTable,
    Progress,
    Refresh,
    StreamTableStatus,
    TestStatus,
    VerifyResult,
)
from runnel.dsn import connection_failure, readable
from runnel.errors import RunnelError, TransientError, UserError
from runnel.lake.watch import TABLES as WATCH_TABLES
from runnel.lake.watch import Limits, query_of, watch_schema
from runnel.lineage import Lineage, trace
from runnel.model.names import Name, quote
from runnel.model.work import WorkDone
from runnel.reading import Plan, Rows, Shown
from runnel.subscription import Delta, subscription

__all__ = [
    "AttachedLake",
    "Check",
    "Client",
    "Delta",
    "LakeInfo",
    "LakeTable",
    "Lineage",
    "Progress",
    "Refresh",
    "Rows",
    "StreamTableStatus",
    "VerifyResult",
    "connect",
]

_LOOK_SECONDS = 0.4
_HANDED_OVER = "01RW1"
# The server notices soon when this process is gone, and the engine stops what it was asked to do.
_NOTICE_GONE: LiteralString = (
    "SELECT set_config('client_connection_check_interval', '2s', {}) WHERE version() ~ 'linux'"
)

Row = dict[str, Any]
Query = LiteralString | sql.SQL | sql.Composed


class Client:
    """A connection to a database with stream tables. Reconnects when the server went away between calls."""

    def __init__(self, dsn: str, *, on_notice: Callable[[str], None] | None = None) -> None:
        self.dsn = dsn
        self._on_notice = on_notice
        self._opened: psycopg.Connection[Row] | None = None
        self._handed_over: list[str] = []
        """The request that the last call has left with the engine, where the server cannot connect to itself."""
        self._pooled = False
        self._pid: int | None = None
        """The server's process that does the present call."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def create_stream_table(
        self, name: str, query: str, schedule: str = "calculated", refresh_mode: str = "AUTO", **options: Any
    ) -> None:
        """Define a stream table and fill it. Returns when its rows are there."""
        given = {"name": name, "query": query, "schedule": schedule, "refresh_mode": refresh_mode, **options}
        self._call("create_stream_table", given)

    def create_or_replace_stream_table(
        self, name: str, query: str, schedule: str = "calculated", refresh_mode: str = "AUTO", **options: Any
    ) -> None:
        """As `create_stream_table`; one of that name is altered to match instead."""
        given = {"name": name, "query": query, "schedule": schedule, "refresh_mode": refresh_mode, **options}
        self._call("create_or_replace_stream_table", given)

    def alter_stream_table(self, name: str, **changes: Any) -> None:
        """Change query, schedule, refresh_mode or status ('ACTIVE', 'SUSPENDED'); None means unchanged."""
        given = {key: value for key, value in changes.items() if value is not None}
        if not given:
            raise UserError("There is nothing to alter.", hint="Give a query, schedule, refresh_mode or status.")
        self._call("alter_stream_table", {"name": name, **given})

    def drop_stream_table(self, name: str, *, cascade: bool = False) -> None:
        self._call("drop_stream_table", {"name": name, "cascade": cascade})

    def refresh(self, name: str | None = None) -> None:
        """Refresh one stream table now, or all active ones, sources before the tables that use them."""
        names = [name] if name is not None else [each.relation for each in self._in_order()]
        for each in names:
            self._call("refresh_stream_table", {"name": each})

    def resume(self, name: str) -> None:
        """Let a suspended or failed stream table take part again."""
        self._call("resume_stream_table", {"name": name})

    def cancel(self, name: str) -> bool:
        """Stop whatever the engine is doing to a stream table; whether there was anything to stop."""
        return bool(self._rows("SELECT pgtrickle.cancel(%(name)s) AS found", {"name": name})[0]["found"])

    def progress(self) -> list[Progress]:
        """What the engine has been at for more than a second."""
        return [Progress(**row) for row in self._rows(_PROGRESS)]

    def status(self) -> list[StreamTableStatus]:
        """Every stream table, by name. Needs no engine."""
        return Shown(StreamTableStatus(**_with_work(row)) for row in self._rows(_STATUS, {}))

    def history(self, name: str | None = None, limit: int = 20) -> list[Refresh]:
        """The latest refreshes, newest first. Needs no engine."""
        query = _HISTORY_OF_ALL if name is None else _HISTORY_OF_ONE
        return Shown(Refresh(**_with_work(row)) for row in self._rows(query, {"name": name, "limit": limit}))

    def explain(self, name: str) -> str:
        """The stages, the delta rule of each operator, and what a refresh would read."""
        rows = self._rows("SELECT line FROM pgtrickle.explain_stream_table(%(name)s) AS line", {"name": name})
        return Plan("\n".join(row["line"] for row in rows))

    def validate(self, query: str) -> list[Check]:
        """What would be said about a query at creation, without creating anything."""
        rows = self._rows(
            "SELECT check_name AS name, result, severity FROM pgtrickle.validate_query(%(query)s)",
            {"query": query},
        )
        return [Check(**row) for row in rows]

    def verify(self, name: str) -> VerifyResult:
        """Refresh, then compare the table with its query as PostgreSQL answers it in the same snapshot."""
        said = self._rows("SELECT pgtrickle.verify_stream_table(%(name)s) AS said", {"name": name})[0]["said"]
        return VerifyResult(
            ok=bool(said["ok"]),
            missing=tuple(said.get("missing") or ()),
            unexpected=tuple(said.get("unexpected") or ()),
            counts=said.get("counts") or {},
        )

    def set_tests(self, name: str, tests: Sequence[Mapping[str, Any]], on_violation: str = "warn") -> list[TestStatus]:
        """Replace what must be true of a stream table's rows, and look; an empty list removes all tests.

        Each of `tests` is like {"unique": ["id"]}, {"not_null": ["a", "b"]}, {"accepted_values": {"a": ["x", "y"]}},
        {"relationships": {"column": "a", "to": "public.t", "field": "id"}} or {"empty": "SELECT .."}. `on_violation`:
        'warn', or 'hold', which keeps the lake at the last good version.
        """
        self._call("set_tests", {"name": name, "tests": Jsonb(list(tests)), "on_violation": on_violation})
        return self.tests(name)

    def tests(self, name: str | None = None) -> list[TestStatus]:
        """What the tests of one stream table, or of all, found last. Needs no engine."""
        return Shown(
            TestStatus(**row) for row in self._rows("SELECT * FROM pgtrickle.test_status(%(name)s)", {"name": name})
        )

    def health(self) -> list[Check]:
        """Whether an engine runs, and which stream tables fail or fall behind. Needs no engine."""
        rows = self._rows("SELECT check_name AS name, detail AS result, severity FROM pgtrickle.health_check()")
        return [Check(**row) for row in rows]

    def change_buffers(self) -> list[Row]:
        """The captured changes that some stream table has yet to consume. Needs no engine."""
        return self._rows("SELECT * FROM pgtrickle.change_buffer_sizes()")

    def dependency_tree(self) -> list[Row]:
        """Stream tables and what they read. Needs no engine."""
        return self._rows("SELECT * FROM pgtrickle.dependency_tree()")

    def lakes(self) -> list[AttachedLake]:
        """The attached lakes, by name. Needs no engine."""
        return [AttachedLake(**row) for row in self._rows(_LAKES)]

    def attach_lake(
        self,
        name: str,
        catalog_schema: str = "public",
        *,
        dsn: str | None = None,
        data_path: str | None = None,
        options: Mapping[str, str] | None = None,
        create: bool = False,
        encrypted: bool = False,
        make_default: bool = False,
    ) -> None:
        """Attach a lake, and make it first with `create`. Credentials are sealed here, before they are sent."""
        given: dict[str, Any] = {
            "name": name,
            "catalog_schema": catalog_schema,
            "dsn": None if dsn is None else self._sealed(name, "dsn", dsn),
            "data_path": data_path,
            "options": Jsonb({key: self._sealed(name, key, value) for key, value in (options or {}).items()}),
            "create_if_missing": create,
            "encrypted": encrypted,
            "make_default": make_default,
        }
        self._call("attach_ducklake", given)

    def detach_lake(self, name: str) -> None:
        """Forget a lake; its catalog and its files stay."""
        self._call("detach_ducklake", {"name": name})

    def set_lake_option(self, name: str, option: str, value: str | None) -> None:
        """Change or (None) forget a setting of a lake; whatever may be secret is sealed before it is sent."""
        sealed = None if value is None else self._sealed(name, option, value)
        self._call("set_lake_option", {"name": name, "option": option, "value": sealed})

    def lake_info(self, name: str | None = None) -> LakeInfo:
        """How to reach a lake from outside; the default lake when none is named."""
        said = self._rows("SELECT pgtrickle.lake_info(%(name)s) AS said", {"name": name})[0]["said"]
        if not said["remote"]:
            # The server as this client reaches it: the engine may sit somewhere else.
            said["connection"] = {key: str(value) for key, value in conninfo_to_dict(self.dsn).items() if value}
        return LakeInfo(**said)

    def lake_tables(self, name: str | None = None) -> list[LakeTable]:
        """Tables and views of a lake; of the default lake when none is named."""
        return [LakeTable(**row) for row in self._rows(_LAKE_TABLES, {"name": name})]

    def maintain_lake(self, name: str | None = None) -> Mapping[str, Any]:
        """Tidy a lake's files now; what was done, by kind."""
        said: Mapping[str, Any] = self._rows("SELECT pgtrickle.maintain_ducklake(%(name)s) AS said", {"name": name})[0][
            "said"
        ]
        return said

    def watch_lake(self, name: str | None = None, *, schedule: str = "2s", limits: Limits | None = None) -> list[Name]:
        """Watch a lake by stream tables over its catalog, in schema `<lake>_watch`; their names. See docs/lake.md.

        A lake that is watched already is watched with the new limits from now on.
        """
        lake = self._watchable(name)
        schema = watch_schema(lake.name)
        self._rows(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        names = []
        for table in WATCH_TABLES:
            text = query_of(table, lake.name, lake.catalog_schema, limits or Limits()).as_string(self._connection())
            names.append(Name(schema, table.name))
            self.create_or_replace_stream_table(names[-1].sql(), text, schedule=schedule)
        return names

    def unwatch_lake(self, name: str | None = None) -> list[str]:
        """Remove what `watch_lake` has made; what else is in the schema stays, and so does the schema then."""
        schema = watch_schema(self._lake_named(name).name if name is None else name)
        there = {each.name: each.relation for each in self.status() if each.schema == schema}
        found = [there[table.name] for table in reversed(WATCH_TABLES) if table.name in there]
        for relation in found:
            self.drop_stream_table(relation)
        with contextlib.suppress(RunnelError):
            self._rows(sql.SQL("DROP SCHEMA IF EXISTS {}").format(sql.Identifier(schema)))
        return found

    def _watchable(self, name: str | None) -> AttachedLake:
        lake = self._lake_named(name)
        if lake.remote:
            raise UserError(
                f"The catalog of lake {lake.name} is in another database, where its changes cannot be captured.",
                hint="Watch it from a Runnel in that database.",
            )
        return lake

    def _lake_named(self, name: str | None) -> AttachedLake:
        known = self.lakes()
        found = next((each for each in known if each.name == name or (name is None and each.is_default)), None)
        if found is None:
            raise UserError(
                f"There is no lake {name}." if name else "There is no default lake.",
                hint=f"Attached lakes: {', '.join(each.name for each in known) or 'none'}. Attach one with: "
                "runnel lake attach",
            )
        return found

    def lineage(
        self, name: str, *, lake: str | None = None, snapshot: int | None = None, limit: int = 10
    ) -> list[Lineage]:
        """The snapshots that a stream table left in lakes, newest first, each back to its sources. Needs no engine."""
        found = self._rows(_RELATION, {"name": name})
        oid = found[0]["oid"] if found else None
        names = (name, f"public.{name}")
        return trace(self._rows, oid, names, lake=lake, snapshot=snapshot, limit=limit)

    def query(self, text: Query) -> list[Row]:
        """Run any query on this client's connection: handy in notebooks."""
        return self._rows(text, waits=False)

    def _in_order(self) -> list[StreamTableStatus]:
        """Active stream tables, each after those it reads."""
        rank = {(row["pgt_schema"], row["pgt_name"]): row["depth"] for row in self._rows(_DEPTHS)}
        active = [each for each in self.status() if each.status in ("ACTIVE", "INITIALIZING")]
        return sorted(active, key=lambda each: rank.get((each.schema, each.name), 0))

    def _sealed(self, lake: str, option: str, value: str) -> str:
        from runnel.catalog import secrets
        from runnel.lake import attached as lakes

        if option in lakes.HARMLESS or secrets.is_sealed(value):
            return value
        key = self._rows("SELECT pgtrickle.sealing_key() AS key")[0]["key"]
        if key is None:
            raise lakes.no_key(lake, option)
        return secrets.seal(value, key, lakes.place(lake, option))

    def _call(self, function: str, arguments: Mapping[str, Any]) -> None:
        """SELECT pgtrickle.function(name => value, ...)."""
        named = [sql.SQL("{} => {}").format(sql.Identifier(key), sql.Placeholder(key)) for key in arguments]
        self._rows(
            sql.SQL("SELECT {}({})").format(sql.Identifier("pgtrickle", function), sql.SQL(", ").join(named)),
            arguments,
        )

    def table(self, name: str) -> Rows:
        """The rows of a stream table, for notebooks: `.arrow()`, `.pandas()`, `.polars()`, `.spark(session)`."""
        oid = self._oid(name)
        (found,) = self._rows(_NAME, {"oid": oid})
        relation = sql.Identifier(found["schema"], found["name"])
        return Rows(f"{found['schema']}.{found['name']}", oid, relation, self._beside)

    def subscribe(
        self, name: str, after: int | None = None, *, seconds: float | None = None, attach: bool = True
    ) -> Iterator[Delta]:
        """What refreshes change, as they commit: each change once, from the version `after` on, or from now on.

        Changes come from the table's outbox; one is attached if there is none, unless `attach` is False. It ends
        after so many `seconds` without a change, or when the loop over it does.
        """
        oid = self._oid(name)
        (found,) = self._rows(_NAME, {"oid": oid})
        full = f"{quote(found['schema'])}.{quote(found['name'])}"
        make = partial(self._call, "attach_outbox", {"name": full}) if attach else None
        with _as_runnel_errors(self.dsn), self._beside() as conn:
            yield from subscription(conn, oid, full, after, seconds, attach=make, hears=not _is_pooled(conn))

    def _oid(self, name: str) -> int:
        found = self._rows(_RELATION, {"name": name})
        if not found:
            raise UserError(f"There is no stream table {name}.", hint="status() lists them.")
        return int(found[0]["oid"])

    @contextlib.contextmanager
    def _beside(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of its own, for what takes long or waits."""
        with _as_runnel_errors(self.dsn), psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None) as conn:
            conn.read_only = False
            if not _is_pooled(conn):
                conn.execute("SET default_transaction_read_only = off")
            yield conn

    @contextlib.contextmanager
    def watched(self, on_progress: Callable[[Progress], None]) -> Iterator[None]:
        """Calls inside tell how far they have come, about twice a second once they take longer than that.

        Another thread calls the function, on a connection of its own.
        """
        self._connection()
        ended = threading.Event()
        # Of a call that has just ended the view may still tell for a moment.
        before = {each.started_at for each in self.progress() if each.caller_pid == self._pid}

        def look() -> None:
            with contextlib.suppress(RunnelError), connect(self.dsn) as beside:
                while not ended.wait(_LOOK_SECONDS):
                    for each in beside.progress():
                        if each.caller_pid == self._pid and each.started_at not in before:
                            on_progress(each)

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _rows(self, query: Query, parameters: Mapping[str, Any] | None = None, *, waits: bool = True) -> list[Row]:
        with _as_runnel_errors(self.dsn):
            self._handed_over.clear()
            with self._turn() as conn:
                cursor = conn.execute(query, parameters)
            if waits and self._handed_over:
                # The same function again, which now waits for that request and gives its answer.
                resume = "SELECT set_config('pgtrickle.resume', %s, true)"
                with self._turn() as conn, conn.transaction():
                    if not self._pooled:
                        conn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    conn.execute(resume, (self._handed_over[0],))
                    cursor = conn.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _turn(self) -> Iterator[psycopg.Connection[Row]]:
        """The connection for one call. Behind a pooler that is a transaction: what it sets is gone with it."""
        conn = self._connection()
        if not self._pooled:
            yield conn
            return
        with conn.transaction():
            row = conn.execute("SELECT pg_backend_pid() AS pid").fetchone()
            self._pid = row["pid"] if row else None
            conn.execute(_NOTICE_GONE.format("true"))
            yield conn

    def _connection(self) -> psycopg.Connection[Row]:
        if self._opened is None or self._opened.closed:
            conn = psycopg.Connection[Row].connect(self.dsn, autocommit=True, row_factory=dict_row)
            self._pooled, self._pid = _is_pooled(conn), conn.info.backend_pid
            # Servers and roles may make read-only the default; a call hands something over, which counts as a write.
            if self._pooled:
                conn.prepare_threshold = None
                conn.read_only = False
                conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            else:
                conn.execute("SET default_transaction_read_only = off")
                conn.execute(_NOTICE_GONE.format("false"))
            conn.add_notice_handler(self._pass_notice)
            self._opened = conn
        return self._opened

    def _pass_notice(self, said: psycopg.errors.Diagnostic) -> None:
        if said.sqlstate == _HANDED_OVER:
            found = re.search(r"\d+", said.message_primary or "")
            self._handed_over += [found[0]] if found else []
            return
        if self._on_notice is not None and said.message_primary:
            self._on_notice(said.message_primary)


def _is_pooled(conn: psycopg.Connection[Any]) -> bool:
    """Whether something between us and the server hands out its sessions, to others too.

    A pooler such as PgBouncer gives every client a number of its own. In its transaction mode a setting would stay
    with a session that somebody else gets next, and a prepared statement would be missing in the next one.
    """
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != conn.info.backend_pid


def connect(dsn: str, *, on_notice: Callable[[str], None] | None = None) -> Client:
    """A client of the database at `dsn`, connected: a wrong address fails here, not at the first call."""
    readable(dsn)
    client = Client(dsn, on_notice=on_notice)
    client.query("SELECT")
    return client


def _with_work(row: Row) -> Row:
    return {**row, "work": WorkDone.from_json(row["work"])}


@contextlib.contextmanager
def _as_runnel_errors(dsn: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _translated(error, dsn) from error


def _translated(error: psycopg.Error, dsn: str) -> RunnelError:
    said = error.diag
    message = (said.message_primary or str(error).strip() or type(error).__name__).partition("\n")[0]
    if said.message_primary is None and isinstance(error, psycopg.OperationalError):
        return connection_failure(error, dsn)
    state = error.sqlstate
    advice = said.message_hint
    if state in ("3F000", "42883") and "pgtrickle" in message:
        advice = "Runnel's schema is missing or old in this database: run `runnel up` or `runnel init`."
    family = TransientError if isinstance(error, psycopg.OperationalError) else RunnelError
    return family(message, hint=advice, detail=said.message_detail, sqlstate=state)


_PROGRESS: LiteralString = """
SELECT name, command, phase, rows_done, rows_total, elapsed, remaining, started_at, caller_pid, worker_pid
FROM pgtrickle.pgt_progress ORDER BY started_at
"""
_STATUS: LiteralString = """
SELECT t.pgt_relid::regclass::text AS relation, t.pgt_schema AS schema, t.pgt_name AS name, p.status,
       p.refresh_mode, p.effective_mode, t.mode_reason, p.schedule, p.is_populated, p.data_timestamp,
       p.staleness, t.last_refresh_at, p.last_refresh_ms, h.action AS last_action, h.rows_inserted,
       h.rows_deleted, p.pending_changes, p.consecutive_errors, p.last_error, p.tests,
       CASE WHEN k.sink = 'ducklake' THEN format('%%s (%%s)', k.lake, k.mode) END AS sink, h.work
FROM pgtrickle.pgt_status() p
JOIN pgtrickle.pgt_stream_tables t ON format('%%I.%%I', t.pgt_schema, t.pgt_name) = p.name
LEFT JOIN pgtrickle.pgt_sinks k ON k.pgt_id = t.pgt_id
LEFT JOIN LATERAL (
    SELECT * FROM pgtrickle.pgt_refresh_history h
    WHERE h.pgt_id = t.pgt_id AND h.status = 'COMPLETED' ORDER BY h.refresh_id DESC LIMIT 1) h ON true
ORDER BY t.pgt_schema, t.pgt_name
"""

_HISTORY_OF_ONE: LiteralString = """
SELECT %(name)s::text AS name, h.start_time, h.end_time, h.data_timestamp, h.action, h.status, h.initiated_by,
       h.changes_read, h.rows_inserted, h.rows_deleted, h.reason, h.error_message, h.timings, h.spark_jobs, l.lake_io,
       l.work
FROM pgtrickle.get_refresh_history(%(name)s, %(limit)s) h
LEFT JOIN pgtrickle.pgt_refresh_history l USING (refresh_id)
ORDER BY refresh_id DESC
"""

_HISTORY_OF_ALL: LiteralString = """
SELECT t.pgt_relid::regclass::text AS name, h.start_time, h.end_time, h.data_timestamp, h.action, h.status,
       h.initiated_by, h.changes_read, h.rows_inserted, h.rows_deleted, h.reason,
       coalesce(e.message, h.error_message) AS error_message, h.timings, h.spark_jobs, h.lake_io, h.work
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id)
LEFT JOIN pgtrickle.pgt_error_texts e USING (refresh_id)
ORDER BY h.refresh_id DESC LIMIT %(limit)s
"""

_RELATION: LiteralString = """
SELECT pgt_relid::int8 AS oid FROM pgtrickle.pgt_stream_tables WHERE pgt_id = pgtrickle._find(%(name)s)
"""

_NAME: LiteralString = """
SELECT pgt_schema AS schema, pgt_name AS name FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = %(oid)s::oid
"""

_LAKES: LiteralString = """
SELECT name, catalog_schema, data_path, encrypted, remote, is_default, attached_at, maintain_every, maintained_at
FROM pgtrickle.pgt_lakes ORDER BY name
"""

_LAKE_TABLES: LiteralString = """
SELECT schema_name AS schema, table_name AS name, kind, rows, files, bytes, columns
FROM pgtrickle.lake_tables(%(name)s)
"""

_DEPTHS: LiteralString = """
WITH RECURSIVE d(pgt_id, depth) AS (
    SELECT pgt_id, 0 FROM pgtrickle.pgt_stream_tables
    UNION
    SELECT p.pgt_id, d.depth + 1 FROM d JOIN pgtrickle.pgt_dependencies p ON p.source_pgt_id = d.pgt_id
)
SELECT t.pgt_schema, t.pgt_name, max(d.depth) AS depth
FROM d JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) GROUP BY 1, 2
"""
