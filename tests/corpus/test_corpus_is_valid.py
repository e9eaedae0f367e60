"""The corpus itself, in plain PostgreSQL without an engine: is it valid SQL, and does every case show something?

Stream tables that a setup creates are views here: that is what they mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from runnel.server.embedded import EmbeddedServer
from tests.corpus.cases import FOLDER, Case, Malformed, Topic, load, parse, topics
from tests.corpus.compare import difference

_databases = itertools.count(1)

STREAM_TABLES_ARE_VIEWS = """
CREATE SCHEMA pgtrickle;
CREATE FUNCTION pgtrickle.create_stream_table(
    name text, query text, schedule text DEFAULT 'calculated', refresh_mode text DEFAULT 'AUTO'
) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('CREATE VIEW %s AS %s', name, query); END $$;
"""


@pytest.fixture
def plain(server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """A database without Runnel."""
    name = f"corpus{next(_databases)}"
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name} TEMPLATE template0".encode())
        with psycopg.connect(make_conninfo(server.dsn, dbname=name), autocommit=True) as db:
            db.execute(STREAM_TABLES_ARE_VIEWS.encode())
            yield db
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("path", topics(), ids=lambda path: path.stem)
def test_the_file_is_valid_and_every_case_changes(path: Path, plain: psycopg.Connection) -> None:
    topic = load(path)
    for setup in topic.setups:
        plain.execute(setup.sql.encode())
    still = {case.name for case in topic.maintained}
    _keep_answers(plain, topic)
    for change in topic.changes:
        plain.execute(change.sql.encode())
        for number, case in enumerate(topic.maintained):
            found = difference(plain, _query(case), f"TABLE kept_{number}")
            if found:
                still.discard(case.name)
    assert not still, f"{path.name}: no change of the file changes the answer of {sorted(still)}"


def _keep_answers(db: psycopg.Connection, topic: Topic) -> None:
    for number, case in enumerate(topic.maintained):
        try:
            db.execute(f"CREATE TABLE kept_{number} AS {_query(case)}".encode())
        except psycopg.Error as error:
            pytest.fail(f"{topic.name}.sql:{case.line}: {case.name}: {error}")


def _query(case: Case) -> str:
    return f"SELECT * FROM ({case.query}\n) AS q"


def test_the_corpus_is_as_large_as_it_says() -> None:
    cases = [case for path in topics() for case in load(path).cases]
    assert len(cases) >= 220
    assert (FOLDER / "README.md").is_file()


MALFORMED = {
    "SELECT 1;": "SQL before the first setup",
    "-- setup\nCREATE TABLE t ();": "at least one setup and one case",
    "-- setup\nCREATE TABLE t ();\n-- case: x\nSELECT 1;": "a sentence that says what it shows",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\n": "a case without a query",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\nSELECT 1;": "nothing ever changes",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\n-- mode: FULL\nSELECT 1;": "FULL because",
    "-- setup\n-- nothing\n-- case: x\n-- shows\nSELECT 1;": "a setup without SQL",
    "-- setup\nS;\n-- case: x\n-- s\nSELECT 1;\n-- case: X\n-- s\nSELECT 2;\n-- change\nS;": "another case has the name",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_file_that_is_not_in_the_format_says_where(text: str) -> None:
    with pytest.raises(Malformed, match=r"bad\.sql") as said:
        parse("bad", text)
    assert MALFORMED[text] in str(said.value)
