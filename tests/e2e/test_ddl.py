"""DDL on sources: harmless changes are harmless, breaking ones stop exactly the stream tables they break."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, eventually, rows, script, value
from tests.sampling import sampled

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text, c numeric(10,2));
CREATE TABLE u (id int PRIMARY KEY, x int);
INSERT INTO t SELECT i, i, 'b' || i, i FROM generate_series(1, 5) i;
INSERT INTO u SELECT i, i FROM generate_series(1, 5) i;
"""


def state(db: psycopg.Connection, name: str) -> tuple[str, str]:
    (found,) = rows(
        db,
        "SELECT status, coalesce(last_error, '') FROM pgtrickle.pgt_stream_tables "
        f"WHERE pgt_schema = current_schema() AND pgt_name = '{name}'",
    )
    return found[0], found[1]


def test_added_columns_indexes_and_constraints_are_harmless(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT a, b FROM t")
    stream("all_columns", "SELECT * FROM t")
    script(
        db,
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7; CREATE INDEX ON t (a); ALTER TABLE t ADD CHECK (a > 0);"
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT 3; ALTER TABLE t ALTER COLUMN b SET NOT NULL; COMMENT "
        "ON TABLE t IS 'x';"
        "INSERT INTO t (id, b) VALUES (10, 'new'); ALTER TABLE t DROP COLUMN extra; INSERT INTO t (id, b) "
        "VALUES (11, 'x')",
    )
    check("s", "all_columns")
    assert state(db, "s") == state(db, "all_columns") == ("ACTIVE", "")
    assert value(db, "SELECT count(*) FROM s") == 7
    assert client.history("s")[0].action == "DIFFERENTIAL"


BREAKING = {
    "dropped column": ("ALTER TABLE t DROP COLUMN a", "dropped"),
    "renamed column": ("ALTER TABLE t RENAME COLUMN a TO a2", 'renamed to "a2"'),
    "retyped column": ("ALTER TABLE t ALTER COLUMN a TYPE text", "changed its type from integer to text"),
    "dropped table": ("DROP TABLE t", "dropped"),
}


@pytest.mark.parametrize("case", BREAKING)
def test_a_breaking_change_stops_only_what_it_breaks(
    case: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("uses_a", "SELECT sum(a) AS s FROM t")
    stream("joins_a", "SELECT t.id, u.x FROM t JOIN u ON u.id = t.a")
    stream("over", "SELECT s + 1 AS s FROM uses_a")
    stream("only_u", "SELECT sum(x) AS s FROM u")
    stream("only_b", "SELECT id, b FROM t")
    ddl, message = BREAKING[case]
    db.execute(ddl.encode())
    for name in ("uses_a", "joins_a"):
        status, error = eventually(lambda n=name: state(db, n) if state(db, n)[0] == "ERROR" else None)
        assert message in error, error
        assert "t" in error
        with pytest.raises(runnel.RunnelError, match="ERROR"):
            client.refresh(name)
    if case != "dropped table":
        name = "a2" if case == "renamed column" else "a"
        columns = "id, b" if case == "dropped column" else f"id, b, {name}"
        values = "(90, 'z')" if case == "dropped column" else "(90, 'z', 9)"
        db.execute(f"INSERT INTO t ({columns}) VALUES {values}".encode())
        db.execute("UPDATE t SET b = 'y' WHERE id = 1")
        db.execute("DELETE FROM t WHERE id = 2")
        check("only_b")
    db.execute("INSERT INTO u VALUES (50, 50)")
    check("only_u")
    assert state(db, "only_u") == ("ACTIVE", "")
    health = dict(rows(db, "SELECT check_name, severity FROM pgtrickle.health_check()"))
    assert health["error_tables"] == "ERROR"


def test_alter_recovers_a_broken_table(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT b, sum(a) AS s FROM t GROUP BY b")
    stream("over", "SELECT max(s) AS m FROM s")
    db.execute("ALTER TABLE t RENAME COLUMN a TO amount")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    db.execute("UPDATE t SET amount = 100 WHERE id = 1")
    client.alter_stream_table("s", query="SELECT b, sum(amount) AS s FROM t GROUP BY b")
    assert state(db, "s") == ("ACTIVE", "")
    db.execute("INSERT INTO t VALUES (9, 900, 'nine')")
    check("s", "over")
    assert rows(db, "SELECT m FROM over") == [(900,)]
    db.execute("ALTER TABLE t DROP COLUMN amount")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    client.drop_stream_table("s", cascade=True)
    assert value(db, "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass") == 0


def test_resume_after_the_source_is_as_before(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT id, a FROM t")
    db.execute("ALTER TABLE t RENAME COLUMN a TO z")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    script(db, "INSERT INTO t (id, z) VALUES (20, 20); ALTER TABLE t RENAME COLUMN z TO a; DELETE FROM t WHERE id = 1")
    client.resume("s")
    check("s")
    assert state(db, "s") == ("ACTIVE", "")


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("RENAME COLUMN a TO z", "RENAME COLUMN z TO a"),
        ("DROP COLUMN a", "ADD COLUMN a int DEFAULT 7"),
        ("ALTER COLUMN a TYPE text", "ALTER COLUMN a TYPE int USING a::int"),
    ],
)
def test_undone_ddl_and_resume(
    there: str, back: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT b, sum(a) AS a, max(a + 1) AS m FROM t GROUP BY b")
    stream("over", "SELECT max(m) AS m FROM s")
    db.execute(f"ALTER TABLE t {there}".encode())
    eventually(lambda: state(db, "s")[0] == "ERROR")
    with pytest.raises(runnel.RunnelError):
        client.resume("s")
    assert state(db, "s")[0] == "ERROR", "nothing was undone yet"
    db.execute(f"ALTER TABLE t {back}".encode())
    db.execute("INSERT INTO t VALUES (6, 'new', 6)" if "DROP" in there else "INSERT INTO t VALUES (6, 6, 'new')")
    client.resume("s")
    check("s", "over")
    db.execute("UPDATE t SET a = 100 WHERE id = 1")
    check("s", "over")
    assert state(db, "s") == state(db, "over") == ("ACTIVE", "")
    assert client.history("s")[0].action == "DIFFERENTIAL"


@pytest.mark.parametrize("heal", ["resume", "create_or_replace", "alter"])
def test_every_way_out_heals(
    heal: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    query = "SELECT id, c FROM t"
    stream("s", query)
    db.execute("ALTER TABLE t RENAME COLUMN c TO other")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    script(db, "ALTER TABLE t DROP COLUMN other; ALTER TABLE t ADD COLUMN c numeric(12,4) DEFAULT 1.2345")
    if heal == "resume":
        client.resume("s")
    elif heal == "alter":
        client.alter_stream_table("s", query=query)
    else:
        db.execute("SELECT pgtrickle.create_or_replace_stream_table('s', %s)", (query,))
    assert state(db, "s") == ("ACTIVE", "")
    assert str(value(db, "SELECT DISTINCT c FROM s")) == "1.2345", "the table has the new type"
    db.execute("UPDATE t SET c = 5.4321 WHERE id = 1")
    check("s")


WIDER = {
    "varchar": ("varchar(5)", "'abc'", "character varying(20)", "'a long word'", "text"),
    "integer": ("int", "1", "bigint", "3000000000", "bigint"),
    "numeric": ("numeric(10,2)", "1", "numeric(12,4)", "1.2345", "numeric"),
    "unbounded": ("numeric(10,2)", "1", "numeric", "1.23456789", "numeric"),
    "real": ("float4", "0.1", "double precision", "0.1", "double precision"),
    "timestamp": ("date", "'2024-01-01'", "timestamp without time zone", "'2024-01-01 12:34'", "timestamp"),
    "another": ("int", "1", "text", "'x'", "text"),
}
TYPE_OF = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{}'::regclass AND attname = '{}'"


@pytest.mark.parametrize("case", sampled(WIDER, every=5))
def test_a_retyped_column_is_followed(
    case: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    narrow, old, wider, new, greatest = WIDER[case]
    script(
        db,
        f"CREATE TABLE w (id int PRIMARY KEY, v {narrow}); INSERT INTO w SELECT i, {old} FROM generate_series(1, 4) i",
    )
    stream("plain", "SELECT id, v FROM w")
    stream("grouped", "SELECT v, count(*) AS n FROM w GROUP BY v")
    stream("chained", "SELECT max(v) AS m FROM plain")
    stream("only_id", "SELECT id FROM w")
    script(db, "GRANT SELECT ON plain TO PUBLIC; CREATE INDEX mine ON plain (id)")
    db.execute(f"ALTER TABLE w ALTER COLUMN v TYPE {wider}".encode())
    db.execute(f"INSERT INTO w VALUES (10, {new})".encode())
    for name in ("plain", "grouped", "chained"):
        check(name)
        assert "REINITIALIZE" in [h.action for h in client.history(name)], name
    reasons = [h.reason for h in client.history("grouped") if h.action == "REINITIALIZE"]
    assert reasons and 'column "v" changed its type' in (reasons[0] or "")
    assert value(db, f"SELECT count(*) FROM plain WHERE v = {new}::{wider}") == 1
    assert value(db, TYPE_OF.format("plain", "v")) == value(db, TYPE_OF.format("grouped", "v")) == wider
    assert value(db, TYPE_OF.format("chained", "m")).startswith(greatest)
    assert value(db, "SELECT to_regclass('mine')") == "mine", "altered in place"
    assert value(db, "SELECT has_table_privilege('pg_monitor', 'plain'::regclass, 'SELECT')")
    db.execute("DELETE FROM w WHERE id = 1")
    check("plain", "grouped", "chained", "only_id")
    assert "REINITIALIZE" not in [h.action for h in client.history("only_id")]


def test_a_retyped_column_under_a_view_of_the_user_is_reported(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT id, a FROM t")
    db.execute("CREATE VIEW mine AS SELECT a FROM s")
    db.execute("ALTER TABLE t ALTER COLUMN a TYPE bigint")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    assert "used by a view" in state(db, "s")[1], state(db, "s")
    db.execute("DROP VIEW mine")
    client.resume("s")
    check("s")


def test_a_new_column_does_not_slip_into_a_star(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES)
    stream("s", "SELECT * FROM u")
    script(db, "ALTER TABLE u ADD COLUMN more int DEFAULT 1; ALTER TABLE u ALTER COLUMN x TYPE bigint")
    check("s")
    assert value(db, "SELECT count(*) FROM pg_attribute WHERE attrelid = 's'::regclass AND attnum > 0") == 2


def test_views_are_inlined_all_the_way_down(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        TABLES + "CREATE VIEW v AS SELECT id, a * 2 AS twice, b FROM t WHERE a > 1;"
        "CREATE VIEW w AS SELECT v.id, v.twice, u.x FROM v LEFT JOIN u ON u.id = v.id;"
        "CREATE VIEW g AS SELECT twice % 4 AS k, count(*) AS n FROM w GROUP BY 1",
    )
    stream("plain", "SELECT id, twice FROM v WHERE twice < 10")
    stream("nested", "SELECT w.id, w.x, v.b FROM w JOIN v ON v.id = w.id")
    stream("grouped", "SELECT k, n, n + 1 AS m FROM g")
    for change in ("UPDATE t SET a = a + 1", "DELETE FROM u WHERE id = 3", "INSERT INTO t VALUES (30, 30, 'x')"):
        db.execute(change.encode())
        check("plain", "nested", "grouped")
        assert client.history("nested")[0].action == "DIFFERENTIAL"
    tree = {r[0] for r in rows(db, "SELECT node FROM pgtrickle.dependency_tree() WHERE node_type = 'view'")}
    assert {n.split(".")[1] for n in tree} == {"v", "w", "g"}


def test_a_replaced_view_is_followed_or_reported(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES + "CREATE VIEW v AS SELECT id, a FROM t WHERE a < 3")
    stream("s", "SELECT id, a FROM v")
    db.execute("CREATE OR REPLACE VIEW v AS SELECT id, a * 10 AS a FROM t WHERE a > 3")
    check("s")
    assert rows(db, "SELECT a FROM s ORDER BY a") == [(40,), (50,)]
    db.execute("INSERT INTO t VALUES (6, 6)")
    check("s")
    script(db, "DROP VIEW v")
    eventually(lambda: state(db, "s")[0] == "ERROR")
    assert "dropped" in state(db, "s")[1]
    db.execute("INSERT INTO t VALUES (7, 7)")


def test_a_replaced_view_may_read_other_tables(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, TABLES + "CREATE VIEW v AS SELECT id, a FROM t")
    stream("s", "SELECT a, count(*) AS n FROM v GROUP BY a")
    db.execute("CREATE OR REPLACE VIEW v AS SELECT t.id, u.x AS a FROM t JOIN u ON u.id = length(t.b)")
    check("s")
    for change in ("UPDATE u SET x = x + 100", "UPDATE t SET b = b || 'x'", "INSERT INTO u VALUES (20, 20)"):
        db.execute(change.encode())
        check("s")
