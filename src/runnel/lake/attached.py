"""Typed access to the lakes of the catalog. Secrets are sealed on their way in and opened on their way out."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from runnel.catalog.secrets import is_sealed, seal, unseal
from runnel.errors import UserError
from runnel.lake.format.model import Lake

log = logging.getLogger(__name__)

Connection = psycopg.Connection[Any]

DEFAULT_LAKE = "lake"
DEFAULT_SCHEMA = "ducklake"
DSN = "dsn"
"""The place of a sealed connection string, beside the options."""

HARMLESS = frozenset(
    {
        "region", "endpoint", "allow_http", "virtual_hosted_style_request", "account_name", "maintain_every",
        "max_retries", "retry_timeout", "timeout", "connect_timeout", "multipart_threshold", "vend_credentials",
    }
)  # fmt: skip
"""Options that may be stored and shown as they are; everything else is sealed."""

# Settings that can also be made with ALTER DATABASE or ALTER ROLE ... SET; a lake's own options win.
LOAD = """
SELECT name, catalog_schema, data_path, encrypted, dsn,
       CASE WHEN starts_with(data_path, 's3://') THEN jsonb_strip_nulls(jsonb_build_object(
           'access_key_id', nullif(current_setting('pg_trickle.ducklake_s3_access_key', true), ''),
           'secret_access_key', nullif(current_setting('pg_trickle.ducklake_s3_secret_key', true), ''),
           'endpoint', nullif(current_setting('pg_trickle.ducklake_s3_endpoint', true), ''),
           'region', nullif(current_setting('pg_trickle.ducklake_s3_region', true), ''))) ELSE '{}' END || options
FROM pgtrickle.pgt_lakes WHERE %(name)s::text IS NULL OR name = %(name)s ORDER BY name
"""
DEFAULT_NAME = "SELECT name FROM pgtrickle.pgt_lakes WHERE is_default"
SEALING_KEY = "SELECT value FROM pgtrickle.pgt_settings WHERE key = 'sealing_key'"
PUBLISH_KEY = """
INSERT INTO pgtrickle.pgt_settings (key, value) VALUES ('sealing_key', %s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE pgt_settings.value IS DISTINCT FROM excluded.value
"""
NO_DEFAULT = "UPDATE pgtrickle.pgt_lakes SET is_default = false WHERE is_default"
INSERT = """
INSERT INTO pgtrickle.pgt_lakes (name, catalog_schema, data_path, encrypted, dsn, options, is_default, maintain_every)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
"""
DELETE = "DELETE FROM pgtrickle.pgt_lakes WHERE name = %s"
SET_OPTION = (
    "UPDATE pgtrickle.pgt_lakes SET options = options || jsonb_build_object(%s::text, %s::text) WHERE name = %s"
)
DROP_OPTION = "UPDATE pgtrickle.pgt_lakes SET options = options - %s WHERE name = %s"
SET_RHYTHM = "UPDATE pgtrickle.pgt_lakes SET maintain_every = %s::interval WHERE name = %s"
DUE = """
SELECT name FROM pgtrickle.pgt_lakes
WHERE coalesce(maintained_at, attached_at) + maintain_every <= clock_timestamp()
ORDER BY maintained_at NULLS FIRST
"""
MAINTAINED = "UPDATE pgtrickle.pgt_lakes SET maintained_at = clock_timestamp() WHERE name = %s"


def load_lakes(conn: Connection) -> dict[str, Lake]:
    """All attached lakes by name. One whose secrets this process cannot open is left out, with a warning."""
    lakes = {}
    for row in conn.execute(LOAD, {"name": None}).fetchall():
        try:
            lakes[str(row[0])] = _lake(row)
        except UserError as error:
            log.warning("lake %s: %s", row[0], error)
    return lakes


def load_lake(conn: Connection, name: str) -> Lake:
    """The lake of that name; the error says what is there instead, or why its secrets cannot be opened."""
    row = conn.execute(LOAD, {"name": name}).fetchone()
    if row is None:
        known = ", ".join(str(each[0]) for each in conn.execute(LOAD, {"name": None})) or "none"
        raise UserError(
            f'there is no lake "{name}"',
            hint=f"Attached lakes: {known}. Attach one with: runnel lake attach, or pgtrickle.attach_ducklake(...)",
            sqlstate="42704",
        )
    return _lake(row)


def lake_names(conn: Connection) -> set[str]:
    """The names of all attached lakes."""
    return {str(row[0]) for row in conn.execute("SELECT name FROM pgtrickle.pgt_lakes")}


def default_lake_name(conn: Connection) -> str | None:
    row = conn.execute(DEFAULT_NAME).fetchone()
    return None if row is None else str(row[0])


def publish_sealing_key(conn: Connection, public_key: str | None) -> None:
    """Let clients seal for this engine; without a key, nobody can seal and secrets are refused."""
    conn.execute(PUBLISH_KEY, (public_key,))


def save_lake(conn: Connection, lake: Lake, *, is_default: bool = False, maintain_every: str | None = None) -> None:
    """Write a new lake's row, with its secrets sealed."""
    if is_default:
        conn.execute(NO_DEFAULT)
    dsn = None if lake.dsn is None else _sealed(conn, lake.name, DSN, lake.dsn)
    options = {key: _sealed(conn, lake.name, key, value) for key, value in lake.options.items()}
    values = (lake.name, lake.schema, lake.data_path, lake.encrypted, dsn, Jsonb(options), is_default, maintain_every)
    conn.execute(INSERT, values)


def delete_lake(conn: Connection, name: str) -> None:
    conn.execute(DELETE, (name,))


def set_lake_option(conn: Connection, name: str, option: str, value: str | None) -> None:
    """Change or (None) forget one setting of a lake's object store."""
    if value is None:
        conn.execute(DROP_OPTION, (option, name))
    else:
        conn.execute(SET_OPTION, (option, _sealed(conn, name, option, value), name))


def set_maintenance(conn: Connection, name: str, every: str | None) -> None:
    """How often the engine tidies the lake by itself; None for never."""
    conn.execute(SET_RHYTHM, (every, name))


def due_for_maintenance(conn: Connection) -> list[str]:
    """Lakes whose turn it is, the longest waiting first."""
    return [str(row[0]) for row in conn.execute(DUE)]


def mark_maintained(conn: Connection, name: str) -> None:
    conn.execute(MAINTAINED, (name,))


def place(lake: str, option: str) -> str:
    """What a sealed value is bound to, and how errors name it."""
    return f"lake {lake}, {option}"


def no_key(lake: str, option: str) -> UserError:
    """Why a secret is not stored."""
    return UserError(
        f"{place(lake, option)} cannot be stored: the engine has no key to seal it with",
        hint="Start the engine with RUNNEL_ENCRYPTION_KEY set (openssl rand -base64 32 makes one), or leave the "
        "credentials to the environment.",
    )


def opened(lake: Lake) -> Lake:
    """The lake with whatever a client had sealed in readable form."""
    dsn = lake.dsn if lake.dsn is None else _opened(lake.name, DSN, lake.dsn)
    return replace(lake, dsn=dsn, options={key: _opened(lake.name, key, value) for key, value in lake.options.items()})


def _lake(row: tuple[Any, ...]) -> Lake:
    name, schema, data_path, encrypted, dsn, options = row
    return opened(Lake(name, schema, data_path, encrypted, dsn, options))


def _sealed(conn: Connection, lake: str, option: str, value: str) -> str:
    if option in HARMLESS or is_sealed(value):
        return value
    found = conn.execute(SEALING_KEY).fetchone()
    if found is None or found[0] is None:
        raise no_key(lake, option)
    return seal(value, str(found[0]), place(lake, option))


def _opened(lake: str, option: str, value: str) -> str:
    return unseal(value, place(lake, option)) if is_sealed(value) else value


def named_lake(conn: Connection, name: str | None) -> Lake:
    """A lake by name, or the default one."""
    chosen = name or default_lake_name(conn)
    if chosen is None:
        raise UserError(
            "no lake is attached",
            hint="Start the engine with --data-path, or attach a lake: runnel lake attach",
            sqlstate="42704",
        )
    return load_lake(conn, chosen)
