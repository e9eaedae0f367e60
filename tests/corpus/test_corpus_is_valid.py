"""The corpus itself, in plain PostgreSQL: is it valid SQL, and does every case show something?"""

from __future__ import annotations

import doctest
from pathlib import Path

import psycopg
import pytest

from runnel.server.embedded import EmbeddedServer
from tests.corpus import cases as loader
from tests.corpus.cases import FOLDER, Case, Malformed, Topic, load, parse, topics
from tests.corpus.compare import difference
from tests.corpus.databases import without_engine


@pytest.mark.parametrize("path", topics(), ids=lambda path: path.stem)
def test_the_file_is_valid_and_every_case_changes(path: Path, server: EmbeddedServer) -> None:
    topic = load(path)
    with without_engine(server, topic, "template0") as (db, topic):
        still = {case.name for case in topic.maintained}
        _keep_answers(db, topic)
        for change in topic.changes:
            db.execute(change.sql.encode())
            for number, case in enumerate(topic.maintained):
                if difference(db, _query(case), f"TABLE kept_{number}"):
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
    found = [case for path in topics() for case in load(path).cases]
    assert len(found) >= 480
    listed = (FOLDER / "README.md").read_text(encoding="utf-8").split("## Files")[1]
    assert [path.stem for path in topics() if f"| {path.stem} |" not in listed] == []


def test_the_loaders_example() -> None:
    assert doctest.testmod(loader).failed == 0


MALFORMED = {
    "SELECT 1;": "SQL before the first setup",
    "-- setup\nCREATE TABLE t ();": "at least one setup and one case",
    "-- setup\nCREATE TABLE t ();\n-- case: x\nSELECT 1;": "a sentence that says what it shows",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\n": "a case without a query",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\nSELECT 1;": "nothing ever changes",
    "-- setup\nCREATE TABLE t ();\n-- case: x\n-- shows\n-- mode: FULL\nSELECT 1;": "FULL because",
    "-- setup\n-- nothing\n-- case: x\n-- shows\nSELECT 1;": "a setup without SQL",
    "-- setup\nS;\n-- case: x\n-- s\nSELECT 1;\n-- case: X\n-- s\nSELECT 2;\n-- change\nS;": "another case has",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_file_that_is_not_in_the_format_says_where(text: str) -> None:
    with pytest.raises(Malformed, match=r"bad\.sql") as said:
        parse("bad", text)
    assert MALFORMED[text] in str(said.value)
