"""The connection of the server to itself, by which SQL functions reach the engine: try it, store another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from runnel.catalog.migrate import OFFERS_DBLINK, SET_SETTING
from runnel.dsn import readable, without_password, without_secrets
from runnel.errors import TransientError

TRY = "SELECT pgtrickle._try_loopback()"
SOCKETS = "SELECT pg_catalog.current_setting('unix_socket_directories', true)"
MAY_READ_SETTINGS = "SELECT pg_catalog.pg_has_role(current_user, 'pg_read_all_settings', 'USAGE')"

HANDED_OVER = (
    "Each call tells the number of a request, which goes to the engine when the caller commits; then\n"
    "SELECT pgtrickle.wait(number) gives the answer. The command line and the Python client do this by themselves."
)


def find_problem(conn: psycopg.Connection[Any], dsn: str) -> TransientError | None:
    """Why SQL functions could not reach an engine on this database, and what to do; None when they can."""
    try:
        row = conn.execute(TRY).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # Only the owner of the functions can tell; others meet the problem, if there is one, at their first call.
        return None
    assert row is not None
    if row[0] is None:
        return None
    if row[0]["kind"] == "dblink":
        offered = conn.execute(OFFERS_DBLINK).fetchone()
        return _without_dblink(row[0]["database"], offered=bool(offered and offered[0]))
    return _told(row[0], dsn, _socket(conn))


def store(conn: psycopg.Connection[Any], dsn: str, loopback: str) -> None:
    """Keep the connection string if it works from the server's own machine; the caller's database is added to it."""
    words = {key: value for key, value in readable(loopback).items() if key != "dbname"}
    with conn.transaction():
        conn.execute(SET_SETTING, ("loopback", make_conninfo("", **words)))
        problem = find_problem(conn, dsn)
        if problem is not None:
            raise problem


def _without_dblink(database: str, *, offered: bool) -> TransientError:
    if not offered:
        return TransientError(
            "SQL functions cannot wait for the engine: this server does not offer the extension dblink.",
            hint=f"They work in another way. {HANDED_OVER}",
        )
    return TransientError(
        "SQL functions cannot reach the engine: the extension dblink is not installed.",
        hint=f"As an administrator run in database {database}: CREATE EXTENSION dblink;\nUntil then e{HANDED_OVER[1:]}",
    )


def _told(said: Mapping[str, Any], dsn: str, socket: str | None) -> TransientError:
    role, detail = said["role"], without_secrets(str(said.get("detail") or ""))
    match said["kind"]:
        case "elsewhere":
            why = "the stored loopback connects to another server"
        case "rights":
            why = f"the role of the stored loopback may not write to pgtrickle.pgt_requests; it must be {role}"
        case _:
            why = f"the server cannot connect to itself as role {role}"
    by_socket = socket and not said["stored"] and "Peer authentication" not in detail
    place = make_conninfo("", host=socket if by_socket else "127.0.0.1", port=said["port"], user=role)
    target = without_password(dsn).replace("'", "'\\''")
    return TransientError(
        f"SQL functions cannot reach the engine: {why}.",
        detail=detail or None,
        hint="Store a connection string that works on the server's own machine, for instance:\n"
        f"  runnel init --dsn '{target}' --loopback \"{place}\" --loopback-password\n"
        "or let the server in without a password by a line in its pg_hba.conf (only for a superuser).\n"
        f"Until then e{HANDED_OVER[1:]}",
    )


def _socket(conn: psycopg.Connection[Any]) -> str | None:
    """The first socket directory, when the role may know it."""
    may = conn.execute(MAY_READ_SETTINGS).fetchone()
    if may is None or not may[0]:
        return None
    row = conn.execute(SOCKETS).fetchone()
    return (row[0] or "").split(",")[0].strip() or None if row else None
