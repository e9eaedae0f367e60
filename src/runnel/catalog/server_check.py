"""What of Runnel works on a server with a role, and which statements of an administrator would make more of it work.

Only looks: nothing is written, and nothing of Runnel need be installed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import sql

from runnel.catalog.migrate import EXTENSION_SCHEMA, MINIMUM_SERVER
from runnel.model.names import quote
from runnel.model.versions import version_of

Connection = psycopg.Connection[Any]


class Verdict(StrEnum):
    """Whether something works."""

    YES = "yes"
    LESS = "less"
    """Runnel works without it, with less."""
    NO = "no"
    """Runnel does not work without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    why: str = ""
    statements: tuple[str, ...] = ()
    """What an administrator runs to have it."""


@dataclass(frozen=True, slots=True)
class _Role:
    name: str
    database: str
    superuser: bool
    creates_roles: bool


_ROLE = "SELECT rolname, current_database(), rolsuper, rolcreaterole FROM pg_roles WHERE rolname = current_user"
_ON_DATABASE = "SELECT has_database_privilege(current_database(), %s)"
_INSTALLED = """
SELECT n.nspowner = r.oid OR pg_has_role(r.oid, n.nspowner, 'USAGE'), pg_get_userbyid(n.nspowner)
FROM pg_namespace n, pg_roles r WHERE n.nspname = 'pgtrickle' AND r.rolname = current_user
"""
_EXTENSION = """
SELECT (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'dblink'),
       EXISTS (SELECT FROM pg_available_extensions WHERE name = 'dblink')
"""
_EVENT_TRIGGERS = "SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgtrickle%'"
_WRAPPER = """
SELECT bool_or(has_foreign_data_wrapper_privilege(oid, 'USAGE')) FROM pg_foreign_data_wrapper
WHERE fdwname IN ('ducklake', 'dblink_fdw')
"""
# Who made the role administers it, and is not meant.
_MEMBERS = """
SELECT r.rolname FROM pg_roles r
WHERE r.rolname <> 'pgtrickle_user' AND NOT r.rolsuper AND pg_has_role(r.oid, 'pgtrickle_user', 'USAGE')
  AND NOT (pg_has_role(r.oid, 'USAGE') AND pg_has_role(r.oid, {kind}))
ORDER BY 1
"""
_DECODING = """
SELECT current_setting('wal_level'), r.rolsuper OR r.rolreplication OR EXISTS (
           SELECT FROM pg_roles m WHERE m.rolname = 'rds_replication' AND pg_has_role(r.oid, m.oid, 'MEMBER')),
       current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)
FROM pg_roles r WHERE r.rolname = current_user
"""
# Owners of ordinary tables of users whose rights the role does not have; from 16 on membership alone may not be enough.
_OWNERS = """
SELECT o.rolname, o.rolsuper, count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles o ON o.oid = c.relowner
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^(pg_|pgtrickle)' AND n.nspname <> 'tide'
  AND NOT (pg_has_role(c.relowner, 'USAGE') AND pg_has_role(c.relowner, {kind}))
GROUP BY 1, 2 ORDER BY 1
"""


def look(conn: Connection) -> list[Finding]:
    """Everything that matters, in the order in which somebody would set it up."""
    row = conn.execute(_ROLE).fetchone()
    assert row is not None
    role = _Role(*row)
    return [
        _version(conn),
        _schemas(conn, role),
        _temporary(conn, role),
        _users(conn, role),
        _dblink(conn, role),
        _ddl(conn, role),
        _lakes(conn, role),
        *_sources(conn, role),
        _wal(conn, role),
    ]


def _version(conn: Connection) -> Finding:
    number = conn.info.server_version
    name = conn.info.parameter_status("server_version") or str(number)
    what = f"PostgreSQL {name}"
    if version_of(number).major < MINIMUM_SERVER:
        return Finding(what=what, verdict=Verdict.NO, why=f"Runnel needs PostgreSQL {MINIMUM_SERVER} or later.")
    return Finding(what=what, verdict=Verdict.YES)


def _schemas(conn: Connection, role: _Role) -> Finding:
    what = "Runnel's schemas"
    found = conn.execute(_INSTALLED).fetchone()
    if found is not None:
        ours, owner = found
        if ours:
            return Finding(what=what, verdict=Verdict.YES, why="They are installed.")
        why = f"They are installed and belong to {owner}: run the engine as that role."
        return Finding(what=what, verdict=Verdict.NO, why=why)
    if _has(conn, "CREATE"):
        return Finding(what=what, verdict=Verdict.YES, why="They can be installed: runnel init")
    statement = f"GRANT CREATE ON DATABASE {quote(role.database)} TO {quote(role.name)};"
    return Finding(what=what, verdict=Verdict.NO, why="The role may not create schemas.", statements=(statement,))


def _temporary(conn: Connection, role: _Role) -> Finding:
    if _has(conn, "TEMPORARY"):
        return Finding(what="Temporary tables", verdict=Verdict.YES)
    statement = f"GRANT TEMPORARY ON DATABASE {quote(role.database)} TO {quote(role.name)};"
    return Finding(what="Temporary tables", verdict=Verdict.NO, why="Refreshes work in them.", statements=(statement,))


def _users(conn: Connection, role: _Role) -> Finding:
    what = "Stream tables of other roles"
    if conn.execute("SELECT 1 FROM pg_roles WHERE rolname = 'pgtrickle_user'").fetchone():
        members = conn.execute(sql.SQL(_MEMBERS).format(kind=_taking_on(conn))).fetchall()
        if not members:
            return Finding(what=what, verdict=Verdict.YES, why="Members of pgtrickle_user may create them.")
        why = "Members of pgtrickle_user may create them, if the engine's role has their rights."
        statements = tuple(_grant_role(name, role) for (name,) in members)
        return Finding(what=what, verdict=Verdict.LESS, why=why, statements=statements)
    if role.superuser or role.creates_roles:
        return Finding(what=what, verdict=Verdict.YES, why="The role pgtrickle_user can be created.")
    return Finding(
        what=what,
        verdict=Verdict.LESS,
        why="The role pgtrickle_user is missing: only members of the engine's role may create stream tables.",
        statements=("CREATE ROLE pgtrickle_user NOLOGIN;",),
    )


def _dblink(conn: Connection, role: _Role) -> Finding:
    what = "SQL functions that wait for the engine"
    row = conn.execute(_EXTENSION).fetchone()
    assert row is not None
    schema, available = row
    without = "Without it they hand requests over at COMMIT (pgtrickle.wait); the command line and Python do not care."
    if schema is not None and role.superuser:
        return Finding(what=what, verdict=Verdict.YES, why="dblink is installed.")
    if schema is not None:
        why = "dblink is installed. It wants a password from this role: runnel init --loopback ... --loopback-password"
        return Finding(what=what, verdict=Verdict.YES, why=why)
    if not available:
        return Finding(what=what, verdict=Verdict.LESS, why=f"This server does not offer dblink. {without}")
    if role.superuser:
        return Finding(what=what, verdict=Verdict.YES, why="dblink can be installed.")
    statements = (
        f"CREATE SCHEMA IF NOT EXISTS {EXTENSION_SCHEMA};",
        f"GRANT USAGE ON SCHEMA {EXTENSION_SCHEMA} TO {quote(role.name)};",
        f"CREATE EXTENSION dblink SCHEMA {EXTENSION_SCHEMA};",
    )
    return Finding(what=what, verdict=Verdict.LESS, why=f"dblink is not installed. {without}", statements=statements)


def _ddl(conn: Connection, role: _Role) -> Finding:
    what = "DDL of sources is followed at once"
    row = conn.execute(_EVENT_TRIGGERS).fetchone()
    if role.superuser or (row is not None and row[0] >= 3):
        return Finding(what=what, verdict=Verdict.YES)
    why = "Event triggers need a superuser. Without them sources are compared every 5 s and before each refresh."
    return Finding(what=what, verdict=Verdict.LESS, why=why)


def _lakes(conn: Connection, role: _Role) -> Finding:
    what = "Lake tables as sources"
    row = conn.execute(_WRAPPER).fetchone()
    if role.superuser or (row is not None and row[0]):
        return Finding(what=what, verdict=Verdict.YES)
    why = "Without a foreign-data wrapper of the role's their names are ordinary tables, which stay empty."
    return Finding(what=what, verdict=Verdict.YES, why=why)


def _wal(conn: Connection, role: _Role) -> Finding:
    """Only for those who wish it: triggers capture as well."""
    what = "Capture from the WAL"
    row = conn.execute(_DECODING).fetchone()
    assert row is not None
    level, may_replicate, slots = row
    instead = "Triggers capture as well."
    if level != "logical":
        # A setting of the server's, which on many servers no statement changes.
        why = f"It needs wal_level = logical, here it is {level}: set it in the server's configuration. {instead}"
        return Finding(what=what, verdict=Verdict.LESS, why=why)
    if slots <= 0:
        why = f"No replication slot is left: raise max_replication_slots in the server's configuration. {instead}"
        return Finding(what=what, verdict=Verdict.LESS, why=why)
    if not may_replicate:
        why = f"The role may not read the WAL; some providers have a role for that (rds_replication). {instead}"
        statement = f"ALTER ROLE {quote(role.name)} REPLICATION;"
        return Finding(what=what, verdict=Verdict.LESS, why=why, statements=(statement,))
    return Finding(what=what, verdict=Verdict.YES, why="cdc_mode => 'wal', for tables whose owner's rights it has.")


def _sources(conn: Connection, role: _Role) -> Iterator[Finding]:
    what = "Tables as sources"
    others = conn.execute(sql.SQL(_OWNERS).format(kind=_taking_on(conn))).fetchall()
    if not others:
        yield Finding(what=what, verdict=Verdict.YES, why="The role has the rights of every table's owner.")
    for owner, superuser, tables in others:
        why = f"{tables} table{'s belong' if tables > 1 else ' belongs'} to {owner}, whose rights capture needs."
        if superuser:
            # To grant a superuser's role would make one of the engine.
            why += " That is a superuser: give tables that are to be sources to an ordinary role, and grant that."
            yield Finding(what=what, verdict=Verdict.LESS, why=why)
        else:
            yield Finding(what=what, verdict=Verdict.LESS, why=why, statements=(_grant_role(owner, role),))


def _taking_on(conn: Connection) -> sql.Literal:
    """The privilege to take on another role; before 16 every member had it."""
    return sql.Literal("SET" if version_of(conn.info.server_version).major >= 16 else "MEMBER")


def _grant_role(owner: str, role: _Role) -> str:
    return f"GRANT {quote(owner)} TO {quote(role.name)};"


def _has(conn: Connection, privilege: str) -> bool:
    row = conn.execute(_ON_DATABASE, (privilege,)).fetchone()
    return bool(row and row[0])
