"""Capture from the WAL, through the public surface: whatever is written, stream tables equal their queries."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

import runnel
from tests.wal.conftest import Captured

TOTALS = "SELECT k, count(*) AS n, sum(v) AS s, max(t) AS t FROM src GROUP BY k"
ROWS = "SELECT id, k, v, t FROM src"
Check = Callable[..., None]


@pytest.fixture
def src(db: psycopg.Connection, client: runnel.Client, captured: Captured) -> None:
    db.execute("CREATE TABLE src (id int PRIMARY KEY, k int, v numeric, t text, unused text)")
    db.execute("INSERT INTO src SELECT i, i % 3, i, 'x' || i FROM generate_series(1, 10) i")
    client.create_stream_table("totals", TOTALS, "1h", "DIFFERENTIAL", cdc_mode="wal")
    client.create_stream_table("copied", ROWS, "1h", "DIFFERENTIAL")
    captured("wal", "src")


def test_statements(db: psycopg.Connection, src: None, check: Check, only_deltas: Check) -> None:
    assert db.execute("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'src'::regclass").fetchone() == (0,)
    for statement in (
        "INSERT INTO src VALUES (11, 1, 1.50, NULL, 'a'), (12, NULL, NULL, E'tab\\t\\\\n', 'b')",
        "UPDATE src SET v = v + 1 WHERE id < 5",
        "UPDATE src SET id = id + 100, k = NULL WHERE id = 3",
        "UPDATE src SET unused = 'nothing that anybody reads'",
        "DELETE FROM src WHERE id IN (1, 12)",
        "INSERT INTO src VALUES (2, 9, 9, '9') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "MERGE INTO src USING (VALUES (2), (77)) AS n (id) ON n.id = src.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, k) VALUES (n.id, 5)",
        "INSERT INTO src SELECT i, i % 7, i, repeat('y', i % 50) FROM generate_series(1000, 20000) i",
        "DELETE FROM src WHERE id % 2 = 0",
    ):
        db.execute(statement.encode())
        check("totals", "copied")
    only_deltas("totals", "copied")
    db.execute("TRUNCATE src")
    db.execute("INSERT INTO src VALUES (1, 1, 1, '1')")
    check("totals", "copied")


def test_toasted_values_that_did_not_change(
    db: psycopg.Connection, src: None, check: Check, only_deltas: Check
) -> None:
    db.execute("ALTER TABLE src ALTER t SET STORAGE EXTERNAL")
    db.execute("INSERT INTO src SELECT 500 + i, 1, i, repeat(i::text, 20000) FROM generate_series(1, 3) i")
    check("copied")
    db.execute("UPDATE src SET v = -v WHERE id > 500")
    check("copied", "totals")
    db.execute("UPDATE src SET t = 'short', v = 0 WHERE id = 501")
    db.execute("DELETE FROM src WHERE id = 502")
    check("copied", "totals")
    only_deltas("totals", "copied")


def test_transactions(dsn: str, db: psycopg.Connection, src: None, check: Check, only_deltas: Check) -> None:
    with psycopg.connect(dsn) as late:
        late.execute("INSERT INTO src VALUES (200, 1, 200, 'late')")
        db.execute("BEGIN; INSERT INTO src VALUES (201, 1, 1, 'never'); ROLLBACK")
        db.execute(
            "BEGIN; INSERT INTO src VALUES (202, 1, 1, 'a'); SAVEPOINT s; UPDATE src SET v = 7 WHERE id = 202; "
            "INSERT INTO src VALUES (203, 1, 1, 'undone'); ROLLBACK TO s; SAVEPOINT u; "
            "INSERT INTO src VALUES (204, 1, 1, 'b'); RELEASE u; COMMIT"
        )
        db.execute("BEGIN; INSERT INTO src VALUES (205, 1, 1, 'prepared'); PREPARE TRANSACTION 'p'")
        db.execute("BEGIN; DELETE FROM src WHERE id < 4; PREPARE TRANSACTION 'q'")
        check("totals", "copied")
        assert _ids(db) == {202, 204}
        db.execute("COMMIT PREPARED 'p'")
        db.execute("ROLLBACK PREPARED 'q'")
        check("totals", "copied")
        late.commit()
    check("totals", "copied")
    assert _ids(db) == {200, 202, 204, 205}
    with psycopg.connect(dsn, autocommit=True) as replica:
        # Triggers would not fire but for ENABLE ALWAYS; the WAL has it in any case.
        replica.execute("SET session_replication_role = replica")
        replica.execute("DELETE FROM src WHERE id = 200")
    check("totals", "copied")
    only_deltas("totals", "copied")


def _ids(db: psycopg.Connection) -> set[int]:
    return {row[0] for row in db.execute("SELECT id FROM copied WHERE id >= 200")}


def test_what_people_see(db: psycopg.Connection, src: None) -> None:
    assert db.execute("SELECT cdc_mode FROM pgtrickle.list_sources('totals')").fetchall() == [("wal",)]
    assert db.execute("SELECT DISTINCT cdc_mode FROM pgtrickle.change_buffer_sizes()").fetchall() == [("wal",)]
    exported = db.execute("SELECT pgtrickle.export_definition('totals')").fetchone()
    assert exported is not None and "cdc_mode => 'wal'" in exported[0]
    lines = db.execute("SELECT * FROM pgtrickle.explain_stream_table('copied')").fetchall()
    assert ("Captured from the WAL: public.src",) in lines


def test_a_refresh_by_a_transaction_that_wrote_is_refused(dsn: str, src: None) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO src VALUES (300, 1, 1, 'x')")
        with pytest.raises(psycopg.Error, match="uncommitted changes in public.src"):
            conn.execute("SELECT pgtrickle.refresh_stream_table('totals')")


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN nested AS positive;
CREATE TABLE typed (
    id int, a bigint, b smallint, c float8, d real, e numeric(12,3), f text COLLATE "C", g varchar(5), h char(4),
    i bytea, j date, k timestamp, l timestamptz, m interval, n time, o timetz, p uuid, q inet, r jsonb, s json,
    t int[], u text[], v mood, w mood[], x positive, y nested, z int4range, aa tstzmultirange, bb bit varying, cc xid8,
    dd money, ee point, ff tsvector, gg regclass, hh pg_lsn, ii boolean, jj "char", kk name
)
"""
VALUES = """
INSERT INTO typed VALUES
    (1, 9e18, -1, 'NaN', '-0', 123456789.125, 'ä', 'abc', 'x', '\\xdeadbeef', '2026-02-28', 'infinity',
     '2026-01-01 00:00+02', '1 mon -3 days 04:05:06.7', '24:00', '12:00+05',
     'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '10.0.0.1/8',
     '{"a": [1, null, "x"]}', '{"b":1}', '{{1,2},{NULL,4}}', '{"a,b",NULL,"\\""}', 'glad', '{sad,glad}', 5, 6, '[1,9)',
     '{[2026-01-01,2026-02-01)}', B'10110', '12345678901', '12.50', '(1,2)', 'a:1 b:2',
     'pg_class', '16/B374D848', true, 'q', 'n')
"""


def test_types(
    db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check, only_deltas: Check
) -> None:
    db.execute(TYPES)
    client.create_stream_table("copied", "SELECT * FROM typed", schedule="1h", cdc_mode="wal")
    captured("wal", "typed")
    db.execute(VALUES)
    db.execute("INSERT INTO typed (id) VALUES (2)")
    check("copied")
    db.execute("UPDATE typed SET c = 'Infinity', v = 'sad', t = '[0:1]={7,8}' WHERE id = 1")
    check("copied")
    db.execute("DELETE FROM typed WHERE id = 1")
    check("copied")
    only_deltas("copied")
    assert db.execute("SELECT id FROM copied").fetchall() == [(2,)]


def test_partitions(db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check) -> None:
    db.execute(
        "CREATE TABLE parted (id int, k int, v int) PARTITION BY LIST (k); "
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1); "
        "CREATE TABLE parted_2 (extra text, v int, id int, k int); ALTER TABLE parted_2 DROP COLUMN extra; "
        "ALTER TABLE parted ATTACH PARTITION parted_2 FOR VALUES IN (2)"
    )
    client.create_stream_table("whole", "SELECT k, sum(v) AS s, count(*) AS n FROM parted GROUP BY k", cdc_mode="wal")
    client.create_stream_table("part", "SELECT sum(v) AS s, count(*) AS n FROM parted_2", cdc_mode="wal")
    captured("wal", "parted", "parted_2")
    db.execute("INSERT INTO parted SELECT i, i % 2 + 1, i FROM generate_series(1, 20) i")
    check("whole", "part")
    db.execute("UPDATE parted SET k = 3 - k WHERE id < 8")
    db.execute("DELETE FROM parted_2 WHERE id > 15")
    check("whole", "part")
    db.execute("CREATE TABLE parted_3 PARTITION OF parted FOR VALUES IN (3)")
    db.execute("INSERT INTO parted VALUES (100, 3, 1)")
    db.execute("UPDATE parted SET v = v + 1")
    db.execute("DELETE FROM parted WHERE id = 100")
    check("whole", "part")
    actions = db.execute("SELECT DISTINCT action FROM pgtrickle.pgt_refresh_history").fetchall()
    assert {a for (a,) in actions} == {"INITIAL", "DIFFERENTIAL"}
    db.execute("ALTER TABLE parted DETACH PARTITION parted_2")
    db.execute("INSERT INTO parted_2 (id, k, v) VALUES (200, 2, 5)")
    check("whole", "part")
    db.execute("CREATE TABLE parted_4 (id int, k int, v int); INSERT INTO parted_4 VALUES (300, 4, 4)")
    db.execute("ALTER TABLE parted ATTACH PARTITION parted_4 FOR VALUES IN (4)")
    db.execute("UPDATE parted SET v = 44 WHERE k = 4")
    check("whole", "part")
    db.execute("TRUNCATE parted")
    db.execute("INSERT INTO parted VALUES (1, 1, 1), (4, 4, 4)")
    check("whole", "part")


def test_inheritance(db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check) -> None:
    db.execute("CREATE TABLE parent (id int, v int); CREATE TABLE child (w int) INHERITS (parent)")
    client.create_stream_table("all_of_them", "SELECT sum(v) AS s, count(*) AS n FROM parent", cdc_mode="wal")
    captured("wal", "parent")
    db.execute("INSERT INTO parent VALUES (1, 1); INSERT INTO child VALUES (2, 2, 2); UPDATE parent SET v = v * 10")
    check("all_of_them")
    db.execute("CREATE TABLE another () INHERITS (parent)")
    db.execute("INSERT INTO another VALUES (3, 3); DELETE FROM parent WHERE id = 2")
    check("all_of_them")
    assert db.execute("SELECT s, n FROM all_of_them").fetchall() == [(13, 2)]


def test_ddl(db: psycopg.Connection, src: None, check: Check) -> None:
    db.execute("ALTER TABLE src ADD COLUMN fresh int DEFAULT 3")
    db.execute("INSERT INTO src VALUES (20, 1, 1, 'x')")
    db.execute("ALTER TABLE src DROP COLUMN unused")
    db.execute("INSERT INTO src VALUES (21, 1, 1, 'x')")
    check("totals", "copied")
    db.execute(
        "BEGIN; INSERT INTO src VALUES (22, 1, 1, 'x'); ALTER TABLE src ADD COLUMN more int; "
        "INSERT INTO src VALUES (23, 1, 1, 'x'); COMMIT"
    )
    check("totals", "copied")
    db.execute("UPDATE src SET v = 1 WHERE id = 23; ALTER TABLE src ALTER v TYPE float8; UPDATE src SET v = 2.5")
    check("totals", "copied")
    db.execute("ALTER TABLE src RENAME TO moved")
    db.execute("UPDATE moved SET k = 4")
    check("totals", "copied")
    # Somebody takes away what decoding needs: it is put back, in the same transaction.
    db.execute("ALTER TABLE moved REPLICA IDENTITY DEFAULT")
    db.execute("UPDATE moved SET k = 5; DELETE FROM moved WHERE id < 3")
    check("totals", "copied")


def test_another_column_is_captured(
    db: psycopg.Connection, client: runnel.Client, src: None, check: Check, captured: Captured
) -> None:
    db.execute("INSERT INTO src VALUES (31, 1, 1, 'x', 'seen')")
    client.create_stream_table("more", "SELECT unused, count(*) AS n FROM src GROUP BY unused", schedule="1h")
    db.execute("UPDATE src SET unused = 'other' WHERE id > 5")
    check("totals", "copied", "more")
    captured("wal", "src")
    # One that is generated is in the WAL from PostgreSQL 18 on. Before, the table goes back to triggers, and nothing is
    # lost on the way.
    db.execute("ALTER TABLE src ADD COLUMN twice numeric GENERATED ALWAYS AS (v * 2) STORED")
    db.execute("UPDATE src SET v = v + 1")
    client.create_stream_table("doubled", "SELECT sum(twice) AS s FROM src", schedule="1h")
    db.execute("UPDATE src SET v = v + 1, unused = 'third'")
    check("totals", "copied", "more", "doubled")
    captured("wal" if db.info.server_version >= 180000 else "trigger", "src")
    db.execute("DELETE FROM src WHERE id % 2 = 0")
    check("totals", "copied", "more", "doubled")


def test_generated_columns(
    db: psycopg.Connection, client: runnel.Client, check: Check, captured: Captured, only_deltas: Callable[..., None]
) -> None:
    db.execute("CREATE TABLE g (id int PRIMARY KEY, v int, w text GENERATED ALWAYS AS ('w' || abs(v)) STORED)")
    db.execute("INSERT INTO g (id, v) SELECT i, i FROM generate_series(1, 20) i")
    newest = db.info.server_version >= 180000
    client.create_stream_table("beside", "SELECT v, count(*) AS n FROM g GROUP BY v", "1h", cdc_mode="auto")
    client.create_stream_table("read", "SELECT w, count(*) AS n, max(id) AS m FROM g GROUP BY w", "1h", cdc_mode="auto")
    captured("wal" if newest else "trigger", "g")
    db.execute("UPDATE g SET v = -v WHERE id < 9; DELETE FROM g WHERE id > 17; INSERT INTO g (id, v) VALUES (30, NULL)")
    check("beside", "read")
    captured("wal" if newest else "trigger", "g")
    db.execute("UPDATE g SET id = id + 100, v = v * 2")
    check("beside", "read")
    only_deltas("beside", "read")
    if newest:
        # The table is written anew, and its rows are not in the WAL.
        db.execute("ALTER TABLE g ALTER COLUMN w SET EXPRESSION AS ('x' || v)")
        db.execute("UPDATE g SET v = 7 WHERE id % 2 = 0")
        check("beside", "read")
        assert db.execute("SELECT count(*) FROM read WHERE w LIKE 'x%'").fetchone() != (0,)


def test_what_stands_in_the_way(db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    kind = "VIRTUAL" if db.info.server_version >= 180000 else "STORED"
    db.execute(f"CREATE TABLE g (id int, v int, w int GENERATED ALWAYS AS (v + 1) {kind})".encode())
    db.execute("CREATE TYPE pair AS (a int, b int); CREATE TABLE c (id int, p pair)")
    with pytest.raises(runnel.errors.RunnelError, match="column w of public.g is generated"):
        client.create_stream_table("s", "SELECT w FROM g", cdc_mode="wal")
    with pytest.raises(runnel.errors.RunnelError, match="column p of public.c is of type public.pair"):
        client.create_stream_table("s", "SELECT p FROM c", cdc_mode="wal")
    with pytest.raises(runnel.errors.RunnelError, match="invalid cdc_mode"):
        client.create_stream_table("s", "SELECT id FROM g", cdc_mode="smoke signals")
    client.create_stream_table("s", "SELECT w FROM g", cdc_mode="auto")
    db.execute("INSERT INTO g (id, v) VALUES (1, 1)")
    check("s")
    assert "Captured by triggers: public.g (cdc_mode auto: column w of public.g is generated" in str(
        client.explain("s")
    )


def test_a_trigger_of_a_stream_table_writes_to_a_source(
    db: psycopg.Connection, client: runnel.Client, captured: Captured, check: Check
) -> None:
    """What a refresh itself writes is decoded later; whoever has seen it already in the same transaction is rebuilt."""
    db.execute("CREATE TABLE src (id int, v int); CREATE TABLE noted (v int)")
    db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.noted VALUES (NEW.v); RETURN NULL; END $$"
    )
    client.create_stream_table("first", "SELECT id, v FROM src", "1h", "DIFFERENTIAL", cdc_mode="wal")
    db.execute("CREATE TRIGGER note AFTER INSERT ON first FOR EACH ROW EXECUTE FUNCTION note()")
    both = "SELECT count(*) AS n, sum(f.v) AS s FROM first f JOIN noted n ON n.v = f.v"
    client.create_stream_table("second", both, "1h", "DIFFERENTIAL", cdc_mode="wal")
    captured("wal", "src", "noted")
    for value in range(1, 4):
        db.execute("INSERT INTO src VALUES (%s, %s)", (value, value))
        client.refresh("second")
        check("second")
        check("second")
    assert db.execute("SELECT n, s FROM second").fetchone() == (3, 6)
