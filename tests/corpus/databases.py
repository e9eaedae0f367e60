"""Databases for a corpus file without an engine, where stream tables of a setup are views: that is what they mean."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import psycopg
from psycopg.conninfo import make_conninfo

from runnel.server.embedded import EmbeddedServer
from tests.corpus.cases import Topic
from tests.versions import set_up

_numbers = itertools.count(1)

STREAM_TABLES_ARE_VIEWS = """
CREATE SCHEMA IF NOT EXISTS pgtrickle;
DROP FUNCTION IF EXISTS pgtrickle.create_stream_table;
CREATE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT 'calculated', refresh_mode text DEFAULT 'AUTO'
) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE VIEW %s AS %s', name, query); END $$;
"""


@contextlib.contextmanager
def without_engine(server: EmbeddedServer, topic: Topic, template: str) -> Iterator[tuple[psycopg.Connection, Topic]]:
    """A fresh database in which the file's setups have run, and the file as far as the server knows its SQL."""
    name = f"corpus{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        with psycopg.connect(make_conninfo(server.dsn, dbname=name), autocommit=True) as db:
            db.execute(STREAM_TABLES_ARE_VIEWS.encode())
            yield db, set_up(db, topic)
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
