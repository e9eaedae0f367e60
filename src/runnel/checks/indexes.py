"""The indexes that tests need: on a hash of each key that must be unique, by which its rows are found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from runnel.apply.ddl import look_away
from runnel.apply.tables import hash_sql
from runnel.checks.statements import Target, keys
from runnel.checks.tests import Test
from runnel.model.names import quote

PREFIX = "pgt_test_"
PRESENT = """
SELECT n.nspname, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE i.indrelid = %s::regclass AND starts_with(c.relname::text, %s)
"""


def keep_indexes(conn: psycopg.Connection[Any], target: Target, tests: Sequence[Test]) -> None:
    """Make those that are missing, and drop those that no test needs any more."""
    wanted = {_name(target, test): test for test in tests if test.kind == "unique"}
    table = target.name.sql()
    present = conn.execute(PRESENT, (table, f"{PREFIX}{target.id}_")).fetchall()
    look_away(conn)
    for schema, name in present:
        if name not in wanted:
            conn.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, name)))
    for name in wanted.keys() - {name for _, name in present}:
        key = hash_sql(keys(target, wanted[name], ""))
        conn.execute(f"CREATE INDEX {quote(name)} ON {table} (({key}))".encode())


def _name(target: Target, test: Test) -> str:
    mark = hashlib.sha256("\n".join(test.columns).encode()).hexdigest()[:8]
    return f"{PREFIX}{target.id}_{mark}"
