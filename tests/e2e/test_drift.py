"""What a query rests on may change without a row being written: it is noticed, and followed or reported."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import runnel
from runnel.server.embedded import EmbeddedServer
from tests.e2e.helpers import Check, Stream, eventually, rows, value
from tests.sampling import sampled
from tests.versions import VERSION, needs

TABLES = """
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TYPE pair AS (x int, y int);
CREATE DOMAIN small AS int;
CREATE COLLATION words (provider = PROVIDER, locale = 'C.UTF-8');
CREATE TABLE t (id int PRIMARY KEY, a int, m mood, p pair, w text COLLATE words DEFAULT 'w');
INSERT INTO t SELECT i, i, CASE WHEN i > 2 THEN 'high'::mood ELSE 'low'::mood END, ROW(i, -i)::pair
FROM generate_series(1, 5) i;
CREATE FUNCTION base(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x + 1';
CREATE FUNCTION over_text(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN SCHEMA.base(x) * 10; END';
CREATE FUNCTION over_atomic(x int) RETURNS int IMMUTABLE LANGUAGE sql BEGIN ATOMIC SELECT base(x) * 100; END;
CREATE FUNCTION shape(x int) RETURNS text IMMUTABLE LANGUAGE plpgsql
AS 'BEGIN RETURN to_json(ROW(x, x)::SCHEMA.pair); END';
CREATE FUNCTION less(a int, b int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT a < b';
CREATE OPERATOR <<< (LEFTARG = int, RIGHTARG = int, FUNCTION = less);
CREATE FUNCTION add_up(s int, x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT coalesce(s, 0) + x';
CREATE AGGREGATE total (int) (SFUNC = add_up, STYPE = int, INITCOND = 0);
CREATE VIEW v AS SELECT id, base(a) AS b FROM t;
"""


@pytest.fixture
def tables(db: psycopg.Connection, schema: str) -> None:
    provider = "builtin" if VERSION >= 17 else "libc"
    db.execute(TABLES.replace("SCHEMA", schema).replace("PROVIDER", provider).encode())


def state(db: psycopg.Connection, name: str) -> tuple[str, str]:
    (found,) = rows(
        db,
        "SELECT status, coalesce(last_error, '') FROM pgtrickle.pgt_stream_tables "
        f"WHERE pgt_schema = current_schema() AND pgt_name = '{name}'",
    )
    return found[0], found[1]


REPLACE_BASE = "CREATE OR REPLACE FUNCTION base(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x + 2'"

FOLLOWED = {
    "function": ("SELECT id, base(a) AS r FROM t", REPLACE_BASE, "function s.base(integer) was changed"),
    "function in a condition": ("SELECT id AS r FROM t WHERE base(a) > 4", REPLACE_BASE, "base(integer) was changed"),
    "function of a view": ("SELECT sum(b) AS r FROM v", REPLACE_BASE, "base(integer) was changed"),
    "function in a text": ("SELECT id, over_text(a) AS r FROM t", REPLACE_BASE, "base(integer) was changed"),
    "function in a body": ("SELECT id, over_atomic(a) AS r FROM t", REPLACE_BASE, "base(integer) was changed"),
    "setting of a function": (
        "SELECT id, shape(a) AS r FROM t",
        "ALTER FUNCTION shape(int) SET DateStyle = 'German'",
        "function s.shape(integer) was changed",
    ),
    "function of an operator": (
        "SELECT id AS r FROM t WHERE a <<< 3",
        "CREATE OR REPLACE FUNCTION less(a int, b int) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT a > b'",
        "less(integer,integer) was changed",
    ),
    "function of an aggregate": (
        "SELECT m, total(a) AS r FROM t GROUP BY m",
        "CREATE OR REPLACE FUNCTION add_up(s int, x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT s + 2 * x'",
        "add_up(integer,integer) was changed",
    ),
    "aggregate": (
        "SELECT m, total(a) AS r FROM t GROUP BY m",
        "CREATE OR REPLACE AGGREGATE total (int) (SFUNC = add_up, STYPE = int, INITCOND = 1000)",
        "total(integer) was changed",
    ),
    "label": (
        "SELECT id, m::text AS r FROM t",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'poor'",
        "type s.mood was changed",
    ),
    "attribute added": (
        "SELECT id, to_jsonb(p) AS r FROM t",
        "ALTER TYPE pair ADD ATTRIBUTE z int",
        "type s.pair was changed",
    ),
    "attribute altered": (
        'SELECT id, to_jsonb(jsonb_populate_record(NULL::lone, \'{"x": "7"}\')) AS r FROM t',
        "ALTER TYPE lone ALTER ATTRIBUTE x TYPE text",
        "type s.lone was changed",
    ),
    "type in a text": (
        "SELECT id, shape(a) AS r FROM t",
        "ALTER TYPE pair RENAME ATTRIBUTE y TO why",
        "type s.pair was changed",
    ),
    "constraint of a domain": (
        "SELECT id, (a::small)::int AS r FROM t",
        "ALTER DOMAIN small ADD CHECK (VALUE < 100)",
        "type s.small was changed",
    ),
    "cast": (
        "SELECT id, (m::text)::word AS r FROM t",
        "CREATE CAST (text AS word) WITH FUNCTION to_word(text)",
        "type s.word was changed",
    ),
}
MORE = {
    "attribute altered": "CREATE TYPE lone AS (x int)",
    "cast": "CREATE TYPE word AS ENUM ('low', 'high', 'other'); CREATE FUNCTION to_word(text) RETURNS word IMMUTABLE "
    "LANGUAGE plpgsql AS 'BEGIN RETURN ''other''; END'",
}


@pytest.mark.parametrize("case", sampled(FOLLOWED, every=2))
def test_what_a_query_rests_on_is_followed(
    case: str, tables: None, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    query, ddl, reason = FOLLOWED[case]
    db.execute(MORE.get(case, "").encode())
    stream("s", query, mode="AUTO")
    stream("bystander", "SELECT count(*) AS n FROM t")
    before = value(db, "SELECT array_agg(s ORDER BY s)::text FROM s")
    db.execute(ddl.encode())
    eventually(lambda: client.history("s")[0].action == "REINITIALIZE", what="it was not rebuilt")
    newest = client.history("s")[0]
    assert reason.replace("s.", f"{value(db, 'SELECT current_schema()')}.") in (newest.reason or ""), newest.reason
    check("s")
    db.execute("INSERT INTO t VALUES (6, 6, 'high', NULL)")
    check("s")
    if case not in ("setting of a function", "constraint of a domain"):
        assert (
            value(
                db,
                "SELECT array_agg(s ORDER BY s)::text FROM s WHERE id <= 5"
                if "id," in query
                else "SELECT array_agg(s ORDER BY s)::text FROM s",
            )
            != before
        ), "the change changed nothing"
    assert [h.action for h in client.history("s")].count("REINITIALIZE") == 1, "once is enough"
    assert {h.action for h in client.history("bystander")} <= {"INITIAL", "DIFFERENTIAL"}
    assert state(db, "s") == ("ACTIVE", "")


@needs(17)  # a collation of libc has no version to begin with
def test_a_collation_that_has_another_version_now(
    tables: None, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    stream("s", "SELECT min(w) AS r FROM t")
    db.execute("UPDATE pg_collation SET collversion = 'older' WHERE oid = 'words'::regcollation")
    client.refresh("s")
    rebuilt = [h for h in client.history("s") if h.action == "REINITIALIZE"]
    assert len(rebuilt) == 1, "no trigger tells of this; a look before each refresh does"
    assert "words was changed" in (rebuilt[0].reason or "")
    db.execute("ALTER COLLATION words REFRESH VERSION")
    eventually(lambda: [h.action for h in client.history("s")].count("REINITIALIZE") == 2)
    check("s")


BROKEN = {
    "volatile": (
        "SELECT id, base(a) AS r FROM t",
        "CREATE OR REPLACE FUNCTION base(x int) RETURNS int VOLATILE LANGUAGE sql AS 'SELECT x'",
        "volatile",
    ),
    "dropped": ("SELECT id, less(a, 3) AS r FROM t", "DROP FUNCTION less CASCADE", "does not exist"),
    "renamed": ("SELECT id, over_text(a) AS r FROM t", "ALTER FUNCTION over_text RENAME TO other", "does not exist"),
    "label in the text": (
        "SELECT id AS r FROM t WHERE m = 'low'",
        "ALTER TYPE mood RENAME VALUE 'low' TO 'poor'",
        'invalid input value for enum',
    ),
    "values outside of a domain": (
        "SELECT id, (a::small)::int AS r FROM t",
        "ALTER DOMAIN small ADD CHECK (VALUE < 3)",
        "violates check constraint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_followed_is_reported(
    case: str, tables: None, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    query, ddl, message = BROKEN[case]
    stream("s", query)
    db.execute(ddl.encode())
    status, error = eventually(lambda: state(db, "s") if state(db, "s")[0] == "ERROR" else None)
    assert message in error and ("was changed" in error or "was dropped" in error), error
    with pytest.raises(runnel.RunnelError, match="resume_stream_table|ERROR"):
        client.refresh("s")
    if case == "volatile":
        db.execute(REPLACE_BASE.encode())
        client.resume("s")
        check("s")
        assert value(db, "SELECT r FROM s WHERE id = 1") == 3


def test_a_source_that_became_unlogged(
    tables: None, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    stream("s", "SELECT id, a FROM t")
    db.execute("ALTER TABLE t SET UNLOGGED")
    status, error = state(db, "s")
    assert status == "ERROR" and "is unlogged" in error and "SET LOGGED" in error, error
    with pytest.raises(runnel.RunnelError, match="cannot be captured"):
        client.resume("s")
    assert state(db, "s")[0] == "ERROR"
    db.execute("DELETE FROM t WHERE id = 1")
    db.execute("ALTER TABLE t SET LOGGED")
    client.resume("s")
    check("s")
    assert state(db, "s") == ("ACTIVE", "")
    assert value(db, "SELECT count(*) FROM s") == 4


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE UNLOGGED TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "CREATE UNLOGGED TABLE p2 (id int, v int); ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
    ],
)
def test_a_partition_that_is_unlogged(
    ddl: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    db.execute("CREATE TABLE p (id int, v int) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    stream("s", "SELECT sum(v) AS s FROM p")
    db.execute(ddl.encode())
    status, error = state(db, "s")
    assert status == "ERROR" and "p2 is unlogged" in error, error
    db.execute("INSERT INTO p VALUES (1, 1), (11, 11)")
    db.execute("ALTER TABLE p2 SET LOGGED")
    client.resume("s")
    check("s")
    assert value(db, "SELECT s FROM s") == 12


def test_a_stream_table_that_became_unlogged(
    tables: None, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    stream("s", "SELECT id, a FROM t")
    db.execute("ALTER TABLE s SET UNLOGGED")
    assert state(db, "s")[0] == "ERROR" and "itself is unlogged" in state(db, "s")[1]
    db.execute("ALTER TABLE s SET LOGGED")
    client.resume("s")
    check("s")


def test_an_update_of_an_extension(
    server: EmbeddedServer, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    share = Path(value(db, "SELECT setting FROM pg_config WHERE name = 'SHAREDIR'")) / "extension"
    function = "CREATE OR REPLACE FUNCTION tiny(x int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT x {}'"
    files = {
        "runnel_tiny.control": "default_version = '1'\nrelocatable = true",
        "runnel_tiny--1.sql": function.format("* 2"),
        "runnel_tiny--1--2.sql": function.format("* 3"),
    }
    for name, text in files.items():
        (share / name).write_text(text)
    try:
        db.execute("CREATE EXTENSION runnel_tiny VERSION '1'")
        db.execute("CREATE TABLE t (id int, a int); INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
        stream("s", "SELECT id, tiny(a) AS r FROM t")
        db.execute("ALTER EXTENSION runnel_tiny UPDATE TO '2'")
    finally:
        for name in files:
            (share / name).unlink()
    eventually(lambda: value(db, "SELECT sum(r) FROM s") == 45, what="it was not rebuilt")
    assert "tiny(integer) was changed" in (client.history("s")[0].reason or "")
    check("s")


@pytest.mark.parametrize(
    "expression",
    ["f::text", "md5(f::text)", "to_jsonb(f)", "ARRAY[f]", "f", "f::float4", "point(f, 1)", "f * 'Infinity'::float8"],
)
def test_verify_sees_the_digits_of_the_query(
    expression: str, db: psycopg.Connection, stream: Stream, check: Check
) -> None:
    db.execute("CREATE TABLE n (id int, f float8)")
    db.execute("INSERT INTO n SELECT i, 1.0 / i FROM generate_series(1, 20) i")
    db.execute("INSERT INTO n VALUES (21, 0.1::float8 + 0.2::float8), (22, 'NaN'), (23, '-0'), (24, NULL), (25, 1e-30)")
    stream("s", f"SELECT id, {expression} AS v FROM n")
    stream("summed", "SELECT id % 3 AS k, sum(f) AS f, avg(f::float4) AS g, min(f) AS h FROM n GROUP BY 1")
    check("s", "summed")
    db.execute("UPDATE n SET f = f / 3 WHERE id % 2 = 0")
    check("s", "summed")


def test_verify_still_sees_a_wrong_number(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    db.execute("CREATE TABLE n (id int, f float8); INSERT INTO n VALUES (1, 0.1), (2, 'NaN'), (3, 'Infinity')")
    stream("s", "SELECT id, f FROM n")
    db.execute("SET pgtrickle.allow_direct_writes = on")
    for wrong in ("0.1000000001", "'Infinity'", "NULL", "-0.1"):
        db.execute(f"UPDATE s SET f = {wrong} WHERE id = 1".encode())
        assert not client.verify("s").ok, wrong
    db.execute("UPDATE s SET f = 0.10000000000000002 WHERE id = 1")
    assert client.verify("s").ok, "the last digits are chance"
