"""Foreign tables that stand for the tables of lakes, kept in step with them.

A stand-in gives a lake table a name and typed columns in PostgreSQL, so that queries over it are checked, printed and
planned like any others. Nothing is read through it: its wrapper has no handler, and a SELECT says so. Columns are
followed by their field ids, so a rename in the lake is a rename here, and the event triggers that watch DDL on
sources see what happened.

A wrapper takes a superuser. Where there is none to be had, a stand-in is an ordinary table that stays empty: a trigger
refuses writes, and its comment says what it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql as psql
from psycopg.types.json import Jsonb

from runnel.catalog.lost import first_line, is_about_the_moment, is_lost
from runnel.errors import RunnelError, UserError
from runnel.lake.attached import load_lakes
from runnel.lake.format import catalog
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.format.types import duck_type, pg_type
from runnel.model.names import Name, quote
from runnel.sources.ducklake.catalogs import LakeCatalogs
from runnel.sources.ducklake.names import cut, standin_name

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

SERVER = "pgtrickle_lakes"
WRAPPER = "ducklake"
TRIGGER = "pgtrickle_wake"
GUARD = "pgtrickle_guard"
LOCK_TIMEOUT = "3s"
RETRY_SECONDS = 2.0
_SYSTEM_COLUMNS = frozenset({"tableoid", "ctid", "xmin", "xmax", "cmin", "cmax"})

KNOWN = """
SELECT k.table_id, k.relid::int8, n.nspname, c.relname, k.columns, c.relkind = 'f'
FROM pgtrickle.pgt_lake_tables k LEFT JOIN pg_class c ON c.oid = k.relid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace WHERE k.lake = %s
"""
SAVE = """
INSERT INTO pgtrickle.pgt_lake_tables (relid, lake, table_id, lake_schema, lake_table, columns)
VALUES (%(relid)s, %(lake)s, %(table_id)s, %(schema)s, %(table)s, %(columns)s)
ON CONFLICT (lake, table_id) DO UPDATE SET relid = excluded.relid, lake_schema = excluded.lake_schema,
    lake_table = excluded.lake_table, columns = excluded.columns
"""
LEFT_BEHIND = """
SELECT c.oid::int8, CASE c.relkind WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'f') AND pg_has_role(c.relowner, 'USAGE')
  AND obj_description(c.oid, 'pg_class') = %s
"""
COLUMNS_FIT = """
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod) = CASE WHEN t LIKE '%%(%%' THEN t ELSE t::regtype::text END
FROM pg_attribute a LEFT JOIN unnest(%s::text[], %s::text[]) w (n, t) ON n = a.attname
WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# The values of a nested column look different once its type has changed, also those that nobody wrote.
REBUILD = """
UPDATE pgtrickle.pgt_stream_tables s SET needs_reinit = true, updated_at = now()
FROM pgtrickle.pgt_dependencies d
WHERE d.pgt_id = s.pgt_id AND d.source_relid = %s AND d.columns_used && %s::text[]
"""

_turn = threading.Lock()
"""Workers of one engine follow one after the other: whoever comes second finds nothing to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A column that a stand-in should have."""

    id: int
    name: str
    pg_type: str
    type: str


@dataclass(frozen=True, slots=True)
class Known:
    """A stand-in as it is; without a name it has been dropped."""

    relid: int
    name: Name | None
    columns: Mapping[int, Mapping[str, Any]]
    """By field id: name, attnum and the lake's type."""
    foreign: bool = True

    @property
    def noun(self) -> str:
        """What PostgreSQL calls it in DDL."""
        return "FOREIGN TABLE" if self.foreign else "TABLE"


@dataclass
class Standins:
    """Follows all attached lakes: their newest snapshots, and the shapes of their tables."""

    catalogs: LakeCatalogs = field(default_factory=LakeCatalogs)
    polled: frozenset[str] = frozenset()
    """Lakes that cannot tell of new snapshots: in another database, or without our trigger."""
    _heads: dict[str, int] = field(default_factory=dict)
    _versions: dict[str, int] = field(default_factory=dict)
    _moved: set[str] = field(default_factory=set)
    _failed: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When a lake could not be followed, and why."""

    def moved(self) -> set[str]:
        """The lakes in which new snapshots were seen since this was last asked."""
        moved, self._moved = self._moved, set()
        return moved

    def follow(self, conn: Connection) -> None:
        """Bring all stand-ins in step with their lakes, and notice new snapshots. Call it in autocommit."""
        with _turn:
            self._follow_all(conn)

    def _follow_all(self, conn: Connection) -> None:
        lakes = load_lakes(conn)
        polled = set()
        for name, lake in lakes.items():
            if time.monotonic() - self._failed.get(name, (-RETRY_SECONDS, ""))[0] < RETRY_SECONDS:
                polled.add(name)
                continue
            try:
                if self._follow(conn, lake):
                    self._moved.add(name)
                if lake.dsn is not None or not _has_trigger(conn, lake):
                    polled.add(name)
            except (RunnelError, psycopg.Error) as error:
                if is_lost(conn):
                    raise
                # One lake in trouble must not stop the others, nor the engine.
                reason = first_line(error)
                if self._failed.get(name, (0.0, ""))[1] != reason:
                    log.warning("lake %s cannot be followed: %s", name, reason)
                self._failed[name] = time.monotonic(), reason
                polled.add(name)
            else:
                self._failed.pop(name, None)
            finally:
                self.catalogs.finish()
        self.polled = frozenset(polled)
        for gone in self._versions.keys() - lakes.keys():
            del self._versions[gone]

    def _follow(self, conn: Connection, lake: Lake) -> bool:
        there = self.catalogs.reading(lake, conn)
        head = catalog.head(there, lake)
        if self._heads.get(lake.name) == head and lake.name in self._versions:
            return False
        version = catalog.snapshots(there, lake, [head])[head].schema_version
        if self._versions.get(lake.name) != version:
            bring_in_step(conn, lake, catalog.tables(there, lake, head))
            if lake.dsn is None:
                _install_trigger(conn, lake)
                _identify(conn, lake)
            self._versions[lake.name] = version
        self._heads[lake.name] = head
        return True


def drop_standins(conn: Connection, lake: str) -> None:
    """Remove the stand-ins of a lake that is detached."""
    schemas = set()
    for known in _known(conn, lake).values():
        if known.name is not None:
            schemas.add(known.name.schema)
            conn.execute(f"DROP {known.noun} {known.name.sql()}".encode())
    conn.execute("DELETE FROM pgtrickle.pgt_lake_tables WHERE lake = %s", (lake,))
    for schema in schemas - {"public"}:
        empty = "SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = %s::regnamespace)"
        row = conn.execute(empty, (quote(schema),)).fetchone()
        if row and row[0]:
            conn.execute(psql.SQL("DROP SCHEMA {}").format(psql.Identifier(schema)))


def bring_in_step(conn: Connection, lake: Lake, tables: Sequence[LakeTable]) -> None:
    """Make the stand-ins of a lake equal to its tables, in one transaction."""
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
        foreign = _has_server(conn)
        known = _known(conn, lake.name)
        wanted = {t.id: t for t in tables}
        for table_id in known.keys() - wanted.keys():
            with _tolerant(conn, lake, f"table {table_id}"):
                _drop(conn, lake, table_id, known[table_id])
        _make_way(conn, lake, known, wanted)
        for table_id, table in wanted.items():
            with _tolerant(conn, lake, f"table {table.schema}.{table.name}"):
                _bring_table_in_step(conn, lake, table, known.get(table_id), foreign=foreign)


class _tolerant:  # noqa: N801  (used like a function)
    """A savepoint: what cannot be done to one stand-in (a view depends on it) leaves the others alone."""

    def __init__(self, conn: Connection, lake: Lake, what: str) -> None:
        self._inner = conn.transaction()
        self._what = f"{what} of lake {lake.name}"

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._inner.__exit__(kind, error, trace)
        if isinstance(error, psycopg.Error) and not is_about_the_moment(error):
            log.warning("the stand-in of %s stays as it is: %s", self._what, error.diag.message_primary)
            return True
        return False


def _known(conn: Connection, lake: str) -> dict[int, Known]:
    found = {}
    for table_id, relid, schema, name, columns, foreign in conn.execute(KNOWN, (lake,)).fetchall():
        by_id = {int(c["id"]): c for c in columns}
        found[table_id] = Known(relid, None if name is None else Name(schema, name), by_id, foreign=bool(foreign))
    return found


def _drop(conn: Connection, lake: Lake, table_id: int, known: Known) -> None:
    if known.name is not None:
        conn.execute(f"DROP {known.noun} {known.name.sql()}".encode())
    conn.execute("DELETE FROM pgtrickle.pgt_lake_tables WHERE lake = %s AND table_id = %s", (lake.name, table_id))


def _make_way(conn: Connection, lake: Lake, known: Mapping[int, Known], wanted: Mapping[int, LakeTable]) -> None:
    """Tables that exchange names: give all that are renamed a name of their own first, unseen by our triggers."""
    targets = {standin_name(lake.name, t.schema, t.name): i for i, t in wanted.items()}
    for table_id, standin in known.items():
        if standin.name is None or table_id not in wanted or targets.get(standin.name, table_id) == table_id:
            continue
        conn.execute("SELECT set_config('pgtrickle.internal', 'on', true)")
        aside = quote(f"pgt_lake_{standin.relid}")
        conn.execute(f"ALTER {standin.noun} {standin.name.sql()} RENAME TO {aside}".encode())
        conn.execute("SELECT set_config('pgtrickle.internal', 'off', true)")


def _bring_table_in_step(conn: Connection, lake: Lake, table: LakeTable, known: Known | None, *, foreign: bool) -> None:
    name = standin_name(lake.name, table.schema, table.name)
    columns = wanted_columns(table)
    if known is None or known.name is None:
        relid = _left_behind(conn, lake, table, name, columns)
        if relid is None:
            relid = _create(conn, lake, table, name, columns, foreign=foreign)
    else:
        relid = known.relid
        unchanged = [(c["id"], c["name"], c["type"]) for c in known.columns.values()]
        if known.name == name and unchanged == [(c.id, c.name, c.type) for c in columns]:
            return
        _alter(conn, known, name, columns)
    numbers = dict(
        conn.execute(
            "SELECT attname::text, attnum FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
            (relid,),
        ).fetchall()
    )
    fields = [{"name": c.name, "attnum": numbers[c.name], "id": c.id, "type": c.type} for c in columns]
    values = {"relid": relid, "lake": lake.name, "table_id": table.id, "schema": table.schema, "table": table.name}
    conn.execute(SAVE, {**values, "columns": Jsonb(fields)})


def wanted_columns(table: LakeTable) -> list[Wanted]:
    """The columns of a table that PostgreSQL can have; the others cannot be queried."""
    found: dict[str, Wanted] = {}
    for column in table.columns:
        name = cut(column.name)
        try:
            wanted = Wanted(column.id, name, pg_type(column), duck_type(column).lower())
        except UserError as error:
            log.info("lake table %s.%s: %s", table.schema, table.name, error.message)
            continue
        if name in found or name in _SYSTEM_COLUMNS:
            log.info("lake table %s.%s: column %s has no name in PostgreSQL", table.schema, table.name, column.name)
            continue
        found[name] = wanted
    return list(found.values())


def _create(
    conn: Connection, lake: Lake, table: LakeTable, name: Name, columns: Sequence[Wanted], *, foreign: bool
) -> int:
    conn.execute(psql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(psql.Identifier(name.schema)))
    items = ", ".join(f"{quote(c.name)} {c.pg_type}" for c in columns)
    noun = "FOREIGN TABLE" if foreign else "TABLE"
    conn.execute(f"CREATE {noun} {name.sql()} ({items}){f' SERVER {SERVER}' if foreign else ''}".encode())
    if not foreign:
        conn.execute(
            f"CREATE TRIGGER {GUARD} BEFORE INSERT OR UPDATE OR DELETE ON {name.sql()} "
            "FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._standin_guard()".encode()
        )
    comment = psql.Literal(_comment(lake, table))
    place = psql.Identifier(name.schema, name.name)
    conn.execute(psql.SQL("COMMENT ON {} {} IS {}").format(psql.SQL(noun), place, comment))
    row = conn.execute("SELECT %s::regclass::oid::int8", (name.sql(),)).fetchone()
    assert row is not None
    return int(row[0])


def _comment(lake: Lake, table: LakeTable) -> str:
    return f"stands for table {table.schema}.{table.name} of lake {lake.name}; read by stream tables"


def _left_behind(conn: Connection, lake: Lake, table: LakeTable, name: Name, columns: Sequence[Wanted]) -> int | None:
    """The stand-in that a dump has brought, while the catalog's row about it was of another database.

    It is known by its comment. Whoever refers to it still can, as long as its columns are those of the table.
    """
    row = conn.execute(LEFT_BEHIND, (name.schema, name.name, _comment(lake, table))).fetchone()
    if row is None:
        return None
    relid, noun = row
    names, types = [c.name for c in columns], [c.pg_type for c in columns]
    own = conn.execute(COLUMNS_FIT, (names, types, relid)).fetchall()
    if own == [(c.name, True) for c in columns]:
        return int(relid)
    conn.execute(f"DROP {noun} {name.sql()}".encode())
    return None


def _alter(conn: Connection, known: Known, name: Name, columns: Sequence[Wanted]) -> None:
    """Bring an existing stand-in to a name and columns; the event triggers see each step."""
    row = conn.execute("SELECT %s::regclass::text", (known.relid,)).fetchone()
    assert row is not None
    here = str(row[0])
    for column_id, old in known.columns.items():
        if column_id not in {c.id for c in columns}:
            conn.execute(f"ALTER {known.noun} {here} DROP COLUMN {quote(old['name'])}".encode())
    kept = {c.id: c for c in columns if c.id in known.columns}
    moved = [c for c in kept.values() if known.columns[c.id]["name"] != c.name]
    taken = {known.columns[c.id]["name"] for c in kept.values()}
    aside = {c.id for c in moved if c.name in taken}
    for column in moved:
        if aside:
            former = quote(known.columns[column.id]["name"])
            conn.execute(f"ALTER {known.noun} {here} RENAME COLUMN {former} TO {quote(f'pgt_{column.id}')}".encode())
    for column in moved:
        former = quote(f"pgt_{column.id}" if aside else known.columns[column.id]["name"])
        conn.execute(f"ALTER {known.noun} {here} RENAME COLUMN {former} TO {quote(column.name)}".encode())
    for column in columns:
        if column.id not in kept:
            conn.execute(f"ALTER {known.noun} {here} ADD COLUMN {quote(column.name)} {column.pg_type}".encode())
        elif known.columns[column.id]["type"] != column.type:
            conn.execute(f"ALTER {known.noun} {here} ALTER COLUMN {quote(column.name)} TYPE {column.pg_type}".encode())
            if column.pg_type == "jsonb":
                conn.execute(REBUILD, (known.relid, [column.name]))
    if known.name is not None and known.name.name != name.name:
        conn.execute(f"ALTER {known.noun} {here} RENAME TO {quote(name.name)}".encode())


def _has_server(conn: Connection) -> bool:
    """Whether there is a foreign server whose wrapper has no handler: ours, or where we may not make one, dblink's."""
    if conn.execute("SELECT FROM pg_foreign_server WHERE srvname = %s", (SERVER,)).fetchone() is not None:
        return True
    wrapper = WRAPPER
    if conn.execute("SELECT FROM pg_foreign_data_wrapper WHERE fdwname = %s", (WRAPPER,)).fetchone() is None:
        try:
            with conn.transaction():
                conn.execute(f"CREATE FOREIGN DATA WRAPPER {WRAPPER} NO HANDLER NO VALIDATOR".encode())
        except psycopg.errors.InsufficientPrivilege:
            wrapper = "dblink_fdw"
    try:
        with conn.transaction():
            conn.execute(f"CREATE SERVER {SERVER} FOREIGN DATA WRAPPER {wrapper}".encode())
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject):
        return False
    return True


def _has_trigger(conn: Connection, lake: Lake) -> bool:
    found = conn.execute(
        "SELECT FROM pg_trigger WHERE tgname = %s AND tgrelid = to_regclass(%s)",
        (TRIGGER, Name(lake.schema, "ducklake_snapshot").sql()),
    ).fetchone()
    return found is not None


def _install_trigger(conn: Connection, lake: Lake) -> None:
    """Let the lake's commits wake the engine."""
    if _has_trigger(conn, lake):
        return
    table = Name(lake.schema, "ducklake_snapshot").sql()
    try:
        with conn.transaction():
            conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
            conn.execute(
                f"CREATE TRIGGER {TRIGGER} AFTER INSERT ON {table} "
                "FOR EACH STATEMENT EXECUTE FUNCTION pgtrickle._lake_wake()".encode()
            )
            conn.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER}".encode())
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
        log.info("lake %s is looked at every second: %s", lake.name, error.diag.message_primary)


def _identify(conn: Connection, lake: Lake) -> None:
    """Let the catalog's tables be part of a publication; whoever made the lake may have left out the keys."""
    try:
        with conn.transaction():
            conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
            conn.execute(
                "SELECT pgtrickle._identify(ARRAY(SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace(%s) "
                "AND relname LIKE 'ducklake%%'))",
                (quote(lake.schema),),
            )
    except psycopg.errors.LockNotAvailable:
        log.info(
            "the tables of lake %s are in use; they are looked at again after its next change of tables", lake.name
        )
