"""Groups are merged by one statement or step by step: both give what the query gives."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from runnel.catalog.owner import AsOwner, as_owner, settle
from runnel.refresh import stagework
from tests.e2e.helpers import Check, Stream, last_refresh, rows, script, value

KEYED = (
    "SELECT a, b, count(*) AS n, count(v) AS c, sum(v) AS s, avg(v) AS m, count(DISTINCT w) AS d, bool_or(f) AS t, "
    "count(DISTINCT v) FILTER (WHERE f) AS e FROM facts JOIN names USING (id) GROUP BY a, b HAVING count(*) > 1"
)
WHOLE = "SELECT count(*) AS n, sum(v) AS s, count(DISTINCT w) AS d FROM facts"
TYPES = (
    """SELECT j::jsonb - 'x' AS j, a COLLATE "C" AS c, count(*) AS n, count(DISTINCT w) AS d FROM facts GROUP BY 1, 2"""
)
DISTINCT = "SELECT DISTINCT a, f FROM facts"


@pytest.fixture(params=["at once", "step by step"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "step by step":
        monkeypatch.setattr(stagework, "MANY", 0)
    return str(request.param)


@pytest.mark.parametrize("query", [KEYED, WHOLE, TYPES, DISTINCT])
def test_both_ways_of_merging_agree_with_the_query(
    way: str, query: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    chance = random.Random(f"{way}{query}")
    script(
        db,
        "CREATE TABLE names (id int, b text); INSERT INTO names VALUES (0, 'x'), (1, NULL), (2, 'y'), (2, 'z');"
        "CREATE TABLE facts (n int, id int, a text, v numeric(10,2), w int, f boolean, j json)",
    )
    stream("merged", query)
    for turn in range(5):
        new = [_fact(chance, 10 * turn + i) for i in range(10)]
        with db.transaction():
            db.cursor().executemany(
                b"INSERT INTO facts VALUES (%s, %s, %s, %s, %s, %s, %s::json)", new if turn != 3 else []
            )
            db.execute("DELETE FROM facts WHERE n %% 3 = %s AND n < %s", (turn % 3, 10 * turn))
            db.execute("UPDATE facts SET a = 'p', w = w + 1 WHERE n %% 7 = %s", (turn,))
            if turn == 4:
                db.execute("DELETE FROM facts")
        check("merged")
        assert last_refresh(client, "merged").action == "DIFFERENTIAL"


def _fact(chance: random.Random, number: int) -> tuple[Any, ...]:
    def some(*values: object) -> object:
        return chance.choice(values)

    return (
        number, chance.randrange(3), some("p", "q", None), some("1.50", "-2", "NaN", None), some(1, 2, None),
        some(True, False, None), some('{"x": 1}', '{"x": 2, "y": 3}', None),
    )  # fmt: skip


def test_statements_in_one_call_find_the_settings_anew(db: psycopg.Connection, dsn: str, schema: str) -> None:
    """Code that the first statement runs cannot change what the names of the second one mean."""
    if not value(db, "SELECT count(*) FROM pg_roles WHERE rolname = 'e2e_ann'"):
        db.execute("CREATE ROLE e2e_ann LOGIN")
    db.execute(f"GRANT USAGE, CREATE ON SCHEMA {schema} TO e2e_ann".encode())
    with psycopg.connect(make_conninfo(dsn, user="e2e_ann"), autocommit=True) as ann:
        script(
            ann,
            f"CREATE TABLE {schema}.heard (t text);"
            f"CREATE FUNCTION {schema}.turn() RETURNS text LANGUAGE sql AS "
            f"$$ SELECT set_config('search_path', '{schema}', false) || set_config('TimeZone', 'Asia/Tokyo', false) $$;"
            f"CREATE FUNCTION {schema}.lower(text) RETURNS text LANGUAGE sql AS $$ SELECT 'another lower' $$",
        )
    with psycopg.connect(dsn, autocommit=True) as conn:
        owner = as_owner(conn, "e2e_ann", {"search_path": "pg_catalog, pg_temp", "TimeZone": "UTC"})
        with conn.transaction():
            asked, counts = _noted(owner, schema)
        settle(conn)
        assert (asked, counts) == ("engine", [1, 2, 0])
        assert value(conn, "SHOW TimeZone") != "Asia/Tokyo"
    said = {row[0] for row in rows(db, f"SELECT t FROM {schema}.heard")}
    assert said == {"turned", "lower e2e_ann UTC"}


def _noted(owner: AsOwner, schema: str) -> tuple[Any, list[int]]:
    heard = f"INSERT INTO {schema}.heard"
    return owner.run_each(
        [
            f"{heard} SELECT 'turned' WHERE {schema}.turn() IS NOT NULL",
            f"{heard} SELECT lower('LOWER ') || session_user || ' ' || current_setting('TimeZone') "
            "FROM generate_series(1, 2)",
            f"DELETE FROM {schema}.heard WHERE t = 'a \"quoted\" \\ one'",
        ],
        ask="SELECT 'engine'",
    )
