"""Where a test's lake lies: in a folder or in an object store, in clear or encrypted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.lake.duck import Duck
from tests.lake.health import assert_healthy, assert_no_orphans
from tests.lake.s3 import S3

ATTACH = """
SELECT pgtrickle.attach_ducklake(%(name)s, %(schema)s, data_path => %(data_path)s, options => %(options)s::jsonb,
    create_if_missing => true, encrypted => %(encrypted)s, make_default => true)
"""


@dataclass(frozen=True)
class Place:
    """A lake that Runnel makes, and how DuckDB gets at it."""

    dsn: str
    data_path: str
    s3: S3 | None = None
    encrypted: bool = False
    through: S3 | None = None
    """How the engine reaches the store, where that is not the way its clients take."""
    options: tuple[tuple[str, str], ...] = ()
    """More settings of the engine's store."""
    name: str = "lake"
    schema: str = "ducklake"

    def attach(self, conn: psycopg.Connection[Any], *, credentials: bool = True) -> None:
        """Make the lake and tell the engine about it; without credentials it looks for them in its environment."""
        store = (self.through or self.s3) if credentials else None
        options = {**(store.options if store else {}), **dict(self.options)}
        given = {"name": self.name, "schema": self.schema, "data_path": self.data_path, "encrypted": self.encrypted}
        conn.execute(ATTACH, {**given, "options": json.dumps(options) if options else None})

    def duck(self) -> Duck:
        """A new client."""
        return Duck(self.dsn, schema=self.schema, s3=self.s3)

    def check(self, conn: psycopg.Connection[Any], *, orphans: bool = True) -> None:
        """The format's rules hold, and every file is known."""
        assert_healthy(conn, self.schema)
        if orphans:
            assert_no_orphans(conn, self.data_path, self.s3, schema=self.schema)
