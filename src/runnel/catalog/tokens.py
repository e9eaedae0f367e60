"""Bearer tokens by role. The database has their hashes: who can read the table still has no token."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import psycopg

from runnel.errors import UserError

Connection = psycopg.Connection[Any]

_BYTES = 32
PREFIX = "rnl_"
"""Tokens are known by it where they should not be: in a log, in a repository."""

CREATE = """
INSERT INTO pgtrickle.pgt_tokens (digest, role, label)
SELECT %(digest)s, oid, %(label)s FROM pg_roles WHERE rolname = %(role)s RETURNING token_id
"""
LIST = """
SELECT t.token_id, coalesce(r.rolname, t.role::text), t.label, t.created_at, t.created_by
FROM pgtrickle.pgt_tokens t LEFT JOIN pg_roles r ON r.oid = t.role ORDER BY t.token_id
"""
REVOKE = "DELETE FROM pgtrickle.pgt_tokens WHERE token_id = %s"
ROLE = """
SELECT r.rolname FROM pgtrickle.pgt_tokens t JOIN pg_roles r ON r.oid = t.role WHERE t.digest = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token; not the token."""

    token_id: int
    role: str
    label: str | None
    created_at: dt.datetime
    created_by: str


def new_token() -> str:
    """A token that nobody can guess."""
    return PREFIX + secrets.token_urlsafe(_BYTES)


def digest(token: str) -> bytes:
    """What is kept of a token. Its 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(token.encode()).digest()


def create_token(conn: Connection, role: str, label: str | None = None) -> tuple[int, str]:
    """A token for a role, and its number; only the hash is sent to the server."""
    token = new_token()
    try:
        row = conn.execute(CREATE, {"digest": digest(token), "role": role, "label": label}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        raise _not_allowed() from None
    if row is None:
        raise UserError(f"there is no role {role}", hint="CREATE ROLE it first, and GRANT it what it may read.")
    return int(row[0]), token


def list_tokens(conn: Connection) -> list[Token]:
    try:
        rows = conn.execute(LIST).fetchall()
    except psycopg.errors.InsufficientPrivilege:
        raise _not_allowed() from None
    return [
        Token(token_id=id, role=role, label=label, created_at=at, created_by=by) for id, role, label, at, by in rows
    ]


def revoke_token(conn: Connection, token_id: int) -> bool:
    """Forget a token; False if there is none of that number. The server stops taking it within a second."""
    try:
        return conn.execute(REVOKE, (token_id,)).rowcount == 1
    except psycopg.errors.InsufficientPrivilege:
        raise _not_allowed() from None


def role_of(conn: Connection, token: str) -> str | None:
    """The role that a token speaks for."""
    row = conn.execute(ROLE, (digest(token),)).fetchone()
    return None if row is None else str(row[0])


def _not_allowed() -> UserError:
    return UserError(
        "only the engine's role and its members may make, list and revoke tokens",
        hint="A token reads with its role's rights, so whoever makes one acts for that role.",
        sqlstate="42501",
    )
