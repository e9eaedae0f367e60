"""Create, alter and drop stream tables.

Capture is installed and committed first, so that the snapshot of the first build lies behind it: whatever commits
later is captured. Everything else happens in the transaction of the build, and whatever fails leaves nothing
behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql as psql

from runnel.apply.ddl import index_result, look_away
from runnel.apply.tables import typed
from runnel.catalog.owner import PINNED_PATH, AsOwner, as_owner
from runnel.errors import RunnelError, TransientError, UserError
from runnel.model.names import UNDESCRIBED, Name, quote
from runnel.refresh.maintained import Mode
from runnel.refresh.rights import check_readable
from runnel.schedule.spec import parse_schedule
from runnel.sources.registry import Kinds, capture_sources
from runnel.sql.compile import Compiled, compile_query
from runnel.sql.describe import SESSION_SETTINGS, user_error

LOCK_TIMEOUT = "10s"
RELEASE_TIMEOUT = "200ms"
UNUSED_CAPTURES = """
SELECT t.source_relid::int8 FROM pgtrickle.pgt_change_tracking t
WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = t.source_relid)
   OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = t.source_relid)
ORDER BY 1
"""
MODES = ("AUTO", "FULL", "DIFFERENTIAL")
OWN_SCHEMAS = ("pgtrickle", "pgtrickle_changes", "pgtrickle_state", "pgtrickle_ext", "pgtrickle_compat")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: role, session settings, and the backend whose locks would block us."""

    role: str
    settings: Mapping[str, str]
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A checked definition, not yet stored."""

    name: Name
    query: str
    schedule: str
    mode: Mode
    owner: str
    settings: Mapping[str, str]
    compiled: Compiled

    @property
    def effective_mode(self) -> str:
        """What refreshes will do when nothing special happens."""
        return "FULL" if self.mode == "FULL" or self.compiled.plan is None else "DIFFERENTIAL"

    @property
    def reason(self) -> str | None:
        """Why FULL, if so."""
        if self.mode == "FULL":
            return "refresh_mode is FULL"
        return None if self.compiled.reason is None else f"{self.compiled.reason} cannot be maintained incrementally"


def parse_mode(text: str) -> Mode:
    """A refresh mode, or an error that lists them."""
    upper = text.strip().upper()
    if upper == "AUTO":
        return "AUTO"
    if upper == "FULL":
        return "FULL"
    if upper == "DIFFERENTIAL":
        return "DIFFERENTIAL"
    if upper == "IMMEDIATE":
        raise UserError(
            "refresh_mode IMMEDIATE is not supported: changes are computed outside of the writing transaction",
            hint="Use AUTO or DIFFERENTIAL with a short schedule such as '1s'.",
            sqlstate="0A000",
        )
    raise UserError(f"invalid refresh_mode {text!r}", hint=f"Use one of {', '.join(MODES)}.", sqlstate="22023")


def resolve_name(conn: psycopg.Connection, text: str, caller: Caller) -> Name:
    """A possibly qualified name, as the caller's search path reads it."""
    try:
        row = conn.execute("SELECT parse_ident(%s), current_setting('max_identifier_length')::int", (text,)).fetchone()
    except psycopg.Error as error:
        raise user_error(error) from None
    assert row is not None
    parts, longest = row
    _refuse_long(parts, longest)
    if len(parts) == 2:  # noqa: PLR2004
        return Name(parts[0], parts[1])
    if len(parts) > 2:  # noqa: PLR2004
        raise UserError(f"invalid name {text!r}", hint="Use 'table' or 'schema.table'.", sqlstate="42602")
    with conn.transaction(force_rollback=True):
        path = {"search_path": caller.settings.get("search_path", "public")}
        with as_owner(conn, caller.role, path).at_work() as asking:
            schema = asking.value("SELECT coalesce(pg_catalog.current_schema(), 'public')", "pg_catalog.text")
    return Name(schema, parts[0])


_MAY_CREATE = """
SELECT coalesce((SELECT value = 'everyone' FROM pgtrickle.pgt_settings WHERE key = 'creators'), false)
    OR pg_has_role(%(role)s, current_user, 'MEMBER')
    OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'pgtrickle_user' AND pg_has_role(%(role)s, oid, 'MEMBER'))
"""


def require_creator(conn: psycopg.Connection, caller: Caller) -> None:
    """Stream tables put triggers on tables and work on the engine: not everybody may make some."""
    row = conn.execute(_MAY_CREATE, {"role": caller.role}).fetchone()
    if not (row and row[0]):
        raise UserError(
            f'role "{caller.role}" may not create stream tables',
            hint=f"An administrator can allow it: GRANT pgtrickle_user TO {quote(caller.role)};",
            sqlstate="42501",
        )


def _refuse_long(parts: Sequence[str], longest: int) -> None:
    """PostgreSQL would cut a longer name off, and two names could become one."""
    for part in parts:
        size = len(part.encode())
        if size > longest:
            raise UserError(
                f'the name "{part}" is too long: it has {size} bytes, and PostgreSQL keeps {longest}',
                hint="Choose a shorter name; letters beyond ASCII take two to four bytes each.",
                sqlstate="42622",
            )


def session_settings(caller: Caller) -> dict[str, str]:
    """The caller's settings that give a query its meaning."""
    return {k: v for k, v in caller.settings.items() if k in SESSION_SETTINGS}


def define(
    conn: psycopg.Connection, name: Name, query: str, schedule: str, mode: str, caller: Caller, kinds: Kinds
) -> Definition:
    """Check everything about a definition; nothing is changed."""
    parsed = parse_mode(mode)
    parse_schedule(schedule)
    settings = session_settings(caller)
    with _prefixed(name):
        compiled = compile_query(conn, query, settings=settings, role=caller.role, kinds=kinds)
    _check_rights(conn, compiled, caller)
    if parsed == "DIFFERENTIAL" and compiled.plan is None:
        raise UserError(
            f"stream table {name}: {compiled.reason} cannot be maintained incrementally",
            detail=compiled.detail,
            hint=_way_out(compiled),
            sqlstate="0A000",
        )
    return Definition(name, query, schedule.strip(), parsed, caller.role, settings, compiled)


def _way_out(compiled: Compiled) -> str:
    full = "Use refresh_mode => 'FULL' (or 'AUTO', which does so by itself)."
    return f"{compiled.entry.way_out} Or u{full[1:]}" if compiled.entry and compiled.entry.way_out else full


def _check_rights(conn: psycopg.Connection, compiled: Compiled, caller: Caller) -> None:
    """PostgreSQL checks rights when a query runs; here that is too late, capture would be installed by then."""
    check_readable(conn, caller.role, compiled.used)


@contextmanager
def _prefixed(name: Name) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(
            f"stream table {name}: {error.message}",
            hint=error.hint,
            detail=error.detail,
            sqlstate=error.sqlstate,
        ) from None


def refuse_existing(conn: psycopg.Connection, name: Name) -> None:
    """A new stream table needs a free name in a schema that exists."""
    if name.schema in OWN_SCHEMAS or name.schema == "information_schema" or name.schema.startswith("pg_"):
        owner = "Runnel" if name.schema in OWN_SCHEMAS else "PostgreSQL"
        raise UserError(
            f'stream table "{name}" cannot be created: schema {name.schema} belongs to {owner} itself',
            hint="Name a schema of your own, such as 'public.my_table'.",
            sqlstate="42939",
        )
    schema = conn.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (name.schema,)).fetchone()
    if schema is None:
        raise UserError(f'schema "{name.schema}" does not exist', sqlstate="3F000")
    row = conn.execute(
        "SELECT c.relkind, s.pgt_id FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid = c.oid WHERE n.nspname = %s AND c.relname = %s",
        (name.schema, name.name),
    ).fetchone()
    if row is None:
        return
    what = "stream table" if row[1] is not None else "relation"
    hint = "Use create_or_replace_stream_table or alter_stream_table." if row[1] is not None else "Choose another name."
    raise UserError(f'{what} "{name}" already exists', hint=hint, sqlstate="42P07")


def install_capture(conn: psycopg.Connection, kinds: Kinds, compiled: Compiled, caller: Caller) -> None:
    """Capture the columns the query uses, committed; waits for writers, but not for ever.

    One table at a time: whoever holds one lock only while it waits for another is no part of a deadlock.
    """
    used = compiled.used
    _refuse_own_locks(conn, [u.relation.oid for u in used], caller)
    try:
        for each in used:
            with conn.transaction():
                conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
                capture_sources(kinds, conn, [each], caller.role)
    except psycopg.errors.LockNotAvailable:
        raise TransientError(
            "capture could not be installed: a transaction is writing to a source table",
            hint="Wait for it (or end it) and try again.",
            sqlstate="55P03",
        ) from None


def _refuse_own_locks(conn: psycopg.Connection, oids: Sequence[int], caller: Caller) -> None:
    """A caller that has written to a source in its own transaction would wait for us, and we for it."""
    if caller.pid is None or not oids:
        return
    row = conn.execute(
        "SELECT relation::regclass::text FROM pg_locks WHERE pid = %s AND relation = ANY(%s::oid[]) AND granted "
        "AND mode NOT IN ('AccessShareLock', 'RowShareLock') LIMIT 1",
        (caller.pid, list(oids)),
    ).fetchone()
    if row is not None:
        raise UserError(
            f"the calling transaction has uncommitted changes in {row[0]}",
            hint="Commit first: the engine works in its own transaction and cannot see or wait for yours.",
            sqlstate="55006",
        )


def refuse_unseen_writes(conn: psycopg.Connection, name: Name, oids: Sequence[int], caller: Caller) -> None:
    """A refresh called by a transaction that wrote would leave out just the rows it was called for.

    Whoever has written to a captured table holds a lock on its buffer until its transaction ends; on the table itself
    if it is captured from the WAL. A lock against readers would let the two wait for each other.
    """
    row = conn.execute(
        "SELECT t.source_relid::regclass::text FROM pgtrickle.pgt_change_tracking t JOIN pg_locks l "
        "ON l.relation = to_regclass('pgtrickle_changes.' || quote_ident(t.buffer)) AND l.mode = 'RowExclusiveLock' "
        "OR l.relation = ANY(t.relations) AND (l.mode = 'AccessExclusiveLock' "
        "OR t.capture = 'wal' AND l.mode = 'RowExclusiveLock') "
        "WHERE t.source_relid = ANY(%s::oid[]) AND l.pid = %s AND l.granted "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1",
        (list(oids), caller.pid),
    ).fetchone()
    if row is not None:
        raise UserError(
            f"stream table {name}: the calling transaction has uncommitted changes in {row[0]}, unseen by any refresh",
            hint="Commit first, then refresh: the engine works in a transaction of its own.",
            sqlstate="55006",
        )


def create_result(conn: psycopg.Connection, definition: Definition) -> int:
    """The stream table itself, made and owned by the caller; its oid."""
    columns = definition.compiled.description.columns
    items = ", ".join(typed(quote(c.name), c.type, c.collation) for c in columns)
    name = definition.name.sql()
    try:
        with as_maker(conn, definition) as maker:
            maker.run(f"CREATE TABLE {name} ({items})")
            # It has no key, and may be part of a publication.
            maker.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    except psycopg.Error as error:
        raise user_error(error) from None
    index_result(conn, name, columns)
    conn.execute(
        psql.SQL("COMMENT ON TABLE {} IS {}").format(
            psql.Identifier(definition.name.schema, definition.name.name), psql.Literal(UNDESCRIBED)
        )
    )
    row = conn.execute("SELECT %s::regclass::oid::int8", (name,)).fetchone()
    assert row is not None
    conn.execute("SELECT pgtrickle._guard_attach(%s::oid)", (row[0],))
    return int(row[0])


@contextmanager
def as_maker(conn: psycopg.Connection, definition: Definition) -> Iterator[AsOwner]:
    """DDL on a stream table, all or nothing: it evaluates the constraints of types, so with its owner's rights."""
    settings = {"search_path": PINNED_PATH, "pgtrickle.internal": "on"}
    with conn.transaction(), as_owner(conn, definition.owner, settings).at_work() as maker:
        yield maker
    look_away(conn)


def drop_state(conn: psycopg.Connection, pgt_id: int) -> None:
    """Drop every state table of a stream table, whatever its plan was."""
    rows = conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgtrickle_state'::regnamespace AND relkind = 'r' "
        "AND relname ~ %s",
        (f"^[gbs]_{pgt_id}_",),
    ).fetchall()
    for (name,) in rows:
        conn.execute(psql.SQL("DROP TABLE pgtrickle_state.{}").format(psql.Identifier(name)))


def release_captures(conn: psycopg.Connection) -> None:
    """Remove captures that no stream table needs any more, one table at a time; those in use are left for later.

    Only while no definition is on its way (`runnel.engine.defining`): its sources seem to be needed by nobody.
    A trigger is dropped under a lock that shuts out readers, and behind it everybody queues: so it is not waited for
    long, and never while another table is held.
    """
    for (oid,) in conn.execute(UNUSED_CAPTURES).fetchall():
        with suppress(psycopg.errors.LockNotAvailable), conn.transaction():
            conn.execute(f"SET LOCAL lock_timeout = '{RELEASE_TIMEOUT}'".encode())
            conn.execute("SELECT pgtrickle._capture_collect(ARRAY[%s::oid])", (oid,))


def release_sources(conn: psycopg.Connection) -> None:
    """Remove change logs and state that no stream table needs any more; under the same condition."""
    logs = conn.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgtrickle_changes'::regnamespace AND relkind = 'r' "
        "AND relname ~ '^log_[0-9]+$' AND NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d "
        "WHERE d.source_pgt_id::text = substring(relname FROM 5))"
    ).fetchall()
    for (name,) in logs:
        conn.execute(psql.SQL("DROP TABLE pgtrickle_changes.{}").format(psql.Identifier(name)))
    # A stream table dropped by plain DROP TABLE leaves its state to be swept here.
    orphans = conn.execute(
        "SELECT DISTINCT split_part(relname, '_', 2)::int8 FROM pg_class WHERE relkind = 'r' "
        "AND relnamespace = 'pgtrickle_state'::regnamespace AND relname ~ '^[gbs]_[0-9]+_' AND NOT EXISTS ("
        "SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id::text = split_part(relname, '_', 2))"
    ).fetchall()
    for (pgt_id,) in orphans:
        drop_state(conn, pgt_id)


def not_found(name: Name) -> RunnelError:
    """The error for an unknown stream table."""
    return UserError(
        f'stream table "{name}" does not exist',
        hint="SELECT * FROM pgtrickle.pgt_status() lists the stream tables.",
        sqlstate="42P01",
    )
