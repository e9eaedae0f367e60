"""Install and upgrade Runnel's schemas on a PostgreSQL server, 15 or later.

Migrations are numbered SQL files beside this module. Each runs once, in its own transaction together with
the row that records it, and under a lock on the table of these rows, so that two engines starting at once cannot
collide, no other role can hold them up, and an interrupted upgrade continues where it stopped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, resources
from typing import Any

import psycopg
from psycopg import sql

from runnel.catalog.sessions import connect
from runnel.errors import UserError
from runnel.model.versions import OLDEST, Version, version_of

log = logging.getLogger(__name__)

MINIMUM_SERVER = OLDEST
EXTENSION_SCHEMA = "pgtrickle_ext"
LOCK_TIMEOUT = "60s"
LEDGER_TRIES = 3

# Readers of the catalog do not stand in the way of this lock, and only its owner can take it.
LOCK = "LOCK TABLE pgtrickle.pgt_migrations IN SHARE ROW EXCLUSIVE MODE"
CREATE_LEDGER = """
CREATE SCHEMA IF NOT EXISTS pgtrickle;
CREATE TABLE IF NOT EXISTS pgtrickle.pgt_migrations (
    version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
"""
LEDGER_EXISTS = "SELECT to_regclass('pgtrickle.pgt_migrations') IS NOT NULL"
APPLIED = "SELECT version FROM pgtrickle.pgt_migrations"
RECORD = "INSERT INTO pgtrickle.pgt_migrations (version, name) VALUES (%s, %s)"
SET_SETTING = """
INSERT INTO pgtrickle.pgt_settings (key, value) VALUES (%s, %s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
WHERE pgt_settings.value IS DISTINCT FROM excluded.value
"""
# Of a statement that holds a password nothing goes to the server's log, as far as the role may say so.
UNLOGGED = """
SELECT set_config(name, value, true) FROM (VALUES ('log_statement', 'none'), ('log_min_duration_statement', '-1'),
    ('log_min_duration_sample', '-1'), ('log_transaction_sample_rate', '0'), ('log_min_error_statement', 'panic'),
    ('log_parameter_max_length', '0'), ('log_parameter_max_length_on_error', '0')) AS v (name, value)
WHERE has_parameter_privilege(current_user, name, 'SET')
"""
HAS_DBLINK = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'dblink')"
OFFERS_DBLINK = "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'dblink')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step: `0002_capture.sql` has version 2 and name `capture`."""

    version: int
    name: str
    text: str


def migrations() -> list[Migration]:
    """All steps shipped with this package, in order."""
    found = []
    for entry in resources.files("runnel.catalog").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            text = entry.read_text(encoding="utf-8")
            found.append(Migration(version=int(match[1]), name=match[2], text=text))
    return sorted(found, key=lambda step: step.version)


def migrate(
    dsn_or_conn: str | psycopg.Connection[Any],
    *,
    loopback: str | None = None,
    version: str | None = None,
) -> list[int]:
    """Bring the database up to date and return the versions applied now (none when it already was).

    `loopback` is the connection string with which SQL functions reach their own server to hand a request to
    the engine; without it they use the server's socket. `version` is what `pgtrickle.version()` answers.
    """
    if isinstance(dsn_or_conn, str):
        with connect(dsn_or_conn, "runnel migrate") as conn:
            return _migrate(conn, loopback, version or package_version())
    if dsn_or_conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        raise UserError("migrations need a connection with no open transaction")
    before = dsn_or_conn.autocommit
    dsn_or_conn.autocommit = True
    try:
        return _migrate(dsn_or_conn, loopback, version or package_version())
    finally:
        dsn_or_conn.autocommit = before


def package_version() -> str:
    """The installed version of Runnel, also when run from a source tree that was never installed."""
    try:
        return metadata.version("runnel")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def check_server(conn: psycopg.Connection[Any]) -> None:
    """Refuse servers that lack what refreshes are built on (MERGE)."""
    number = conn.info.server_version
    if number // 10000 < MINIMUM_SERVER:
        name = conn.info.parameter_status("server_version") or str(number)
        raise UserError(
            f"PostgreSQL {name} is too old: Runnel needs PostgreSQL {MINIMUM_SERVER} or later",
            hint="upgrade the server, or run `runnel up` without --dsn to use the embedded PostgreSQL 18",
        )


def _migrate(conn: psycopg.Connection[Any], loopback: str | None, version: str) -> list[int]:
    check_server(conn)
    known = migrations()
    with _allowed(conn):
        done = _applied(conn)
    newest = known[-1].version
    if done and max(done) > newest:
        raise UserError(
            f"the database was upgraded by a newer Runnel (schema {max(done)}, this one knows {newest})",
            hint="upgrade this installation of Runnel",
        )
    _install_dblink(conn)
    with _allowed(conn):
        fresh = [step.version for step in known if step.version not in done and _apply(conn, step)]
    with conn.transaction():
        conn.execute(SET_SETTING, ("version", version))
        if loopback is not None:
            conn.execute(UNLOGGED)
            conn.execute(SET_SETTING, ("loopback", loopback))
    return fresh


@contextmanager
def _allowed(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Tell a role that may not install what to do about it."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        raise UserError(
            f'role "{conn.info.user}" may not install Runnel in database "{conn.info.dbname}": '
            f"{error.diag.message_primary or error}",
            hint="runnel init --check prints what is missing, and the statements that an administrator has to run.",
            sqlstate="42501",
        ) from None


def _apply(conn: psycopg.Connection[Any], step: Migration) -> bool:
    """Take one step, unless somebody else has just taken it."""
    with conn.transaction():
        _lock(conn)
        if step.version in _versions(conn):
            return False
        run_step(conn, step)
        conn.execute(RECORD, (step.version, step.name))
    return True


def run_step(conn: psycopg.Connection[Any], step: Migration) -> None:
    """The statements of one step, in the words of this server's version."""
    server = version_of(conn.info.server_version)
    conn.execute((stand_ins_of(step, server) + server.adapted(step.text)).encode())


def stand_ins_of(step: Migration, server: Version) -> str:
    """What must be there before this step, on a server that lacks it: before the first, all of it."""
    return server.stand_ins if step.version == 1 else ""


def _lock(conn: psycopg.Connection[Any]) -> None:
    conn.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'".encode())
    conn.execute(LOCK)


def _applied(conn: psycopg.Connection[Any]) -> set[int]:
    for attempt in range(LEDGER_TRIES):
        exists = conn.execute(LEDGER_EXISTS).fetchone()
        if exists is not None and exists[0]:
            # Asked first so that a role that may not create schemas can still start on an installed database.
            break
        try:
            conn.execute(CREATE_LEDGER)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable, psycopg.errors.DuplicateSchema):
            # Another engine makes it in this moment; IF NOT EXISTS does not see what is not committed yet.
            if attempt == LEDGER_TRIES - 1:
                raise
    return _versions(conn)


def applied(conn: psycopg.Connection[Any]) -> set[int]:
    """The versions that a database has, also one in which nothing is installed; only looks."""
    exists = conn.execute(LEDGER_EXISTS).fetchone()
    return _versions(conn) if exists is not None and exists[0] else set()


def _versions(conn: psycopg.Connection[Any]) -> set[int]:
    return {int(row[0]) for row in conn.execute(APPLIED)}


def _install_dblink(conn: psycopg.Connection[Any]) -> None:
    """The engine works without dblink; only the SQL functions that wait for it need the extension."""
    found = conn.execute(HAS_DBLINK).fetchone()
    if found is not None and found[0]:
        return
    schema = sql.Identifier(EXTENSION_SCHEMA)
    try:
        with conn.transaction():
            _lock(conn)
            conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            conn.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS dblink SCHEMA {}").format(schema))
    except psycopg.Error as error:
        row = conn.execute(OFFERS_DBLINK).fetchone()
        until = " until an administrator runs: CREATE EXTENSION dblink" if row and row[0] else ""
        log.warning(
            "the dblink extension could not be installed (%s); SQL functions hand requests over at COMMIT "
            "(pgtrickle.wait)%s",
            error.diag.message_primary or error,
            until,
        )
