"""Everything that an ordinary role can hang its code on, while the engine maintains its stream tables.

Each carrier brings the trap of `tests.security.trap` into a refresh. It must have run (else the case tests nothing),
never with another session_user or current_user than the guest's, and must not have become anybody else.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import psycopg
import pytest

import runnel
from tests.sampling import sampled
from tests.security import trap
from tests.versions import is_known


@dataclass(frozen=True, slots=True)
class Carrier:
    """Where the code hangs: made before the stream table, the query, and made after it."""

    query: str
    before: str = ""
    after: str = ""
    mode: str = "AUTO"
    runs: bool = True
    """Whether PostgreSQL calls the code at all."""


T = "SELECT id, x FROM g.t"

CARRIERS: dict[str, Carrier] = {
    "a domain": Carrier("SELECT id, (x::g.dom)::int AS x FROM g.t"),
    "a domain as a result column": Carrier("SELECT id, x::g.dom AS x FROM g.t"),
    "a domain in an array": Carrier("SELECT id, ARRAY[x]::g.dom[] AS x FROM g.t"),
    "a domain in a composite": Carrier("SELECT id, ROW(x)::g.comp AS x FROM g.t", "CREATE TYPE g.comp AS (d g.dom)"),
    "a domain over a domain": Carrier("SELECT id, x::g.outer_dom AS x FROM g.t", "CREATE DOMAIN g.outer_dom AS g.dom"),
    "a domain as a group key": Carrier("SELECT x::g.dom AS k, count(*) AS n FROM g.t GROUP BY 1"),
    "a domain joined": Carrier("SELECT a.id, a.x::g.dom AS x FROM g.t a JOIN g.t b ON b.id = a.x", ""),
    "a domain in max()": Carrier("SELECT id % 3 AS k, max(x::g.dom) AS m FROM g.t GROUP BY 1"),
    "a domain in json": Carrier("SELECT id, JSON_VALUE(to_jsonb(x), '$' RETURNING g.dom) AS x FROM g.t", mode="FULL"),
    "a range's canonical form": Carrier(
        "SELECT id, g.myrange(x, x + 5)::text AS r FROM g.t",
        "CREATE TYPE g.myrange; CREATE FUNCTION g.canon(g.myrange) RETURNS g.myrange LANGUAGE internal IMMUTABLE "
        "STRICT AS 'int4range_canonical'",
        runs=False,
    ),
    "a range's difference": Carrier(
        "SELECT id % 3 AS k, max(g.frange(x, x + 5)) AS r, count(DISTINCT g.frange(x, id)) AS n FROM g.t "
        "WHERE id >= x GROUP BY 1",
        "CREATE FUNCTION g.diff(float8, float8) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM g.spring(); RETURN $1 - $2; END $$; "
        "CREATE TYPE g.frange AS RANGE (subtype = float8, subtype_diff = g.diff)",
        runs=False,
    ),
    "a function": Carrier("SELECT id, g.same(x) AS x FROM g.t"),
    "a function over groups": Carrier("SELECT x, g.same(count(*)::int) AS n FROM g.t GROUP BY x"),
    "a function in HAVING": Carrier("SELECT x, count(*) AS n FROM g.t GROUP BY x HAVING g.ok(x)"),
    "a function in a window": Carrier("SELECT id, sum(g.same(x)) OVER (PARTITION BY x ORDER BY id) AS s FROM g.t"),
    "a function in a recursion": Carrier(
        "WITH RECURSIVE r(n) AS (SELECT x FROM g.t UNION SELECT g.same(n + 1) FROM r WHERE n < 7) SELECT n FROM r"
    ),
    "a function in a join": Carrier("SELECT a.id FROM g.t a JOIN g.t b ON g.same(a.x) = b.id"),
    "a set-returning function": Carrier(
        "SELECT t.id, f.n FROM g.t t CROSS JOIN LATERAL g.several(t.x) AS f(n)",
        "CREATE FUNCTION g.several(int) RETURNS SETOF int LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM g.spring(); RETURN NEXT $1; END $$",
    ),
    "an operator": Carrier(
        "SELECT id FROM g.t WHERE x OPERATOR(g.===) 1",
        "CREATE FUNCTION g.eq(int, int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM g.spring(); RETURN $1 = $2; END $$; "
        "CREATE OPERATOR g.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = g.eq)",
    ),
    "an aggregate": Carrier(
        "SELECT x, g.total(id) AS s FROM g.t GROUP BY x",
        "CREATE FUNCTION g.add(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM g.spring(); RETURN $1 + $2; END $$; "
        "CREATE AGGREGATE g.total(int) (SFUNC = g.add, STYPE = int, INITCOND = 0)",
    ),
    "a cast": Carrier(
        "SELECT a.id, ROW(a.x)::g.pair AS p FROM g.t a JOIN g.t b ON b.id = a.x",
        "CREATE TYPE g.pair AS (a int); CREATE FUNCTION g.show(g.pair) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM g.spring(); RETURN 'pair'; END $$; "
        "CREATE CAST (g.pair AS text) WITH FUNCTION g.show(g.pair) AS ASSIGNMENT",
        runs=False,
    ),
    "an index's predicate": Carrier("SELECT id, x FROM g.t WHERE x > 0", "CREATE INDEX ON g.t (x) WHERE g.ok(1)"),
    "an index's expression": Carrier("SELECT id, x FROM g.t WHERE g.same(x) = 1", "CREATE INDEX ON g.t (g.same(x))"),
    "a constraint of a partition": Carrier(
        "SELECT id, x FROM g.p WHERE x = 1",
        "CREATE TABLE g.p (id int, x int) PARTITION BY LIST (x); CREATE TABLE g.p1 PARTITION OF g.p FOR VALUES IN (1); "
        "ALTER TABLE g.p1 ADD CHECK (g.ok(1)); INSERT INTO g.p VALUES (1, 1)",
        "INSERT INTO g.p VALUES (2, 1)",
    ),
    "a partition's key": Carrier(
        "SELECT id, x FROM g.p",
        "CREATE TABLE g.p (id int, x int) PARTITION BY LIST (g.same(x)); "
        "CREATE TABLE g.p1 PARTITION OF g.p FOR VALUES IN (1); INSERT INTO g.p VALUES (1, 1)",
        "INSERT INTO g.p VALUES (2, 1)",
        runs=False,
    ),
    "a generated column": Carrier(
        "SELECT id, y FROM g.gen",
        "CREATE TABLE g.gen (id int, y int GENERATED ALWAYS AS (g.same(id)) STORED); INSERT INTO g.gen VALUES (1)",
        "INSERT INTO g.gen VALUES (2)",
        runs=False,
    ),
    "a view": Carrier("SELECT id, x FROM g.v", "CREATE VIEW g.v AS SELECT id, g.same(x) AS x FROM g.t"),
    "a view under FULL": Carrier(
        "SELECT id, x FROM g.v", "CREATE VIEW g.v AS SELECT id, g.same(x) AS x FROM g.t", mode="FULL"
    ),
    "a view replaced later": Carrier(
        "SELECT id, x FROM g.v",
        "CREATE VIEW g.v AS SELECT id, x FROM g.t",
        "CREATE OR REPLACE VIEW g.v AS SELECT id, g.same(x) AS x FROM g.t",
    ),
    "a view replaced later under FULL": Carrier(
        "SELECT id, x FROM g.v",
        "CREATE VIEW g.v AS SELECT id, x FROM g.t",
        "CREATE OR REPLACE VIEW g.v AS SELECT id, g.same(x) AS x FROM g.t",
        mode="FULL",
    ),
    "a policy on the source": Carrier(
        "SELECT id, x FROM g.t",
        "ALTER TABLE g.t ENABLE ROW LEVEL SECURITY; ALTER TABLE g.t FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY p ON g.t USING (g.ok(x))",
    ),
    "a policy on the stream table": Carrier(
        T,
        "",
        "ALTER TABLE g.st ENABLE ROW LEVEL SECURITY; ALTER TABLE g.st FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY p ON g.st USING (g.ok(x)) WITH CHECK (g.ok(x))",
    ),
    "a child of the stream table": Carrier(
        T, "", "CREATE TABLE g.child (CHECK (g.ok(x))) INHERITS (g.st); CREATE INDEX ON g.child (x) WHERE g.ok(1)"
    ),
    "a trigger before each row": Carrier(
        T, "", "CREATE TRIGGER f BEFORE INSERT OR DELETE ON g.st FOR EACH ROW EXECUTE FUNCTION g.fires()"
    ),
    "a trigger after the statement": Carrier(
        T, "", "CREATE TRIGGER f AFTER INSERT OR DELETE ON g.st FOR EACH STATEMENT EXECUTE FUNCTION g.fires()"
    ),
    "a deferred trigger": Carrier(
        T,
        "",
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.st DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION g.fires()",
    ),
    "a trigger that is deferred again": Carrier(
        T,
        "",
        "CREATE TABLE g.more (x int); "
        "CREATE FUNCTION g.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "EXECUTE 'SET CONSTRAINTS ALL DEFERRED'; INSERT INTO g.more VALUES (1); RETURN NEW; END $$; "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.more DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.fires(); "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.st DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.again()",
    ),
    "a trigger that is deferred until COMMIT": Carrier(
        T,
        "",
        "CREATE TABLE g.more (x int); "
        "CREATE FUNCTION g.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM g.spring(); "
        "EXECUTE 'SET CONSTRAINTS ALL DEFERRED'; "
        "IF (SELECT count(*) FROM g.more) < 40 THEN INSERT INTO g.more VALUES (1); END IF; RETURN NEW; END $$; "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.more DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.again(); "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.st DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.again()",
    ),
    "a trigger of a temporary table that is deferred until COMMIT": Carrier(
        T,
        "",
        "CREATE FUNCTION g.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM g.spring(); "
        "EXECUTE 'SET CONSTRAINTS ALL DEFERRED'; "
        "IF (SELECT count(*) FROM pg_temp.more) < 40 THEN INSERT INTO pg_temp.more VALUES (1); END IF; "
        "RETURN NEW; END $$; "
        "CREATE FUNCTION g.lays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF to_regclass('pg_temp.more') IS NULL THEN "
        "CREATE TEMP TABLE more (x int); CREATE CONSTRAINT TRIGGER f AFTER INSERT ON pg_temp.more "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION g.again(); INSERT INTO pg_temp.more VALUES (1); "
        "END IF; RETURN NEW; END $$; "
        "CREATE TRIGGER f AFTER INSERT ON g.st FOR EACH ROW EXECUTE FUNCTION g.lays()",
    ),
    "a cast of a foreign key that is deferred until COMMIT": Carrier(
        T,
        "",
        "CREATE TYPE g.num AS (v int); CREATE TABLE g.pk (id int PRIMARY KEY); INSERT INTO g.pk VALUES (1); "
        "CREATE FUNCTION g.to_int(g.num) RETURNS int LANGUAGE plpgsql AS $$ BEGIN PERFORM g.spring(); "
        "PERFORM g.more(); RETURN $1.v; END $$; "
        "CREATE CAST (g.num AS int) WITH FUNCTION g.to_int(g.num) AS IMPLICIT; "
        "CREATE TABLE g.fk (n g.num REFERENCES g.pk (id) DEFERRABLE INITIALLY DEFERRED); "
        "CREATE FUNCTION g.more() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'SET CONSTRAINTS ALL DEFERRED'; "
        "IF (SELECT count(*) FROM g.fk) < 40 THEN INSERT INTO g.fk VALUES (ROW(1)); END IF; END $$; "
        "CREATE FUNCTION g.begins() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM g.more(); RETURN NEW; END $$; "
        "CREATE TRIGGER f AFTER INSERT ON g.st FOR EACH ROW EXECUTE FUNCTION g.begins()",
    ),
    "a deferred trigger that wants to write once more": Carrier(
        T,
        "",
        "CREATE TABLE g.more (x int); "
        "CREATE FUNCTION g.again() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE way text; BEGIN PERFORM g.spring(); "
        "FOREACH way IN ARRAY ARRAY['SET transaction_read_only = off', 'SET LOCAL transaction_read_only = off', "
        "'RESET transaction_read_only', 'SET TRANSACTION READ WRITE', 'RESET ALL'] LOOP "
        "BEGIN EXECUTE way; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; "
        "EXECUTE 'SET CONSTRAINTS ALL DEFERRED'; "
        "IF (SELECT count(*) FROM g.more) < 40 THEN INSERT INTO g.more VALUES (1); END IF; RETURN NEW; "
        "EXCEPTION WHEN read_only_sql_transaction THEN RETURN NEW; END $$; "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.more DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.again(); "
        "CREATE CONSTRAINT TRIGGER f AFTER INSERT ON g.st DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "EXECUTE FUNCTION g.again()",
    ),
    "an index on the stream table": Carrier(T, "", "CREATE INDEX ON g.st (g.same(x))"),
    "a constraint of the stream table": Carrier(T, "", "ALTER TABLE g.st ADD CHECK (g.ok(x))"),
    "a rule on the stream table": Carrier(T, "", "CREATE RULE r AS ON INSERT TO g.st DO ALSO SELECT g.spring()"),
    "extended statistics": Carrier(
        "SELECT x, count(*) AS n FROM g.t WHERE x > 0 GROUP BY x",
        "CREATE STATISTICS g.stats ON (g.same(x)), id FROM g.t; ANALYZE g.t",
        runs=False,
    ),
}


@pytest.mark.parametrize("name", sampled(CARRIERS, every=6))
def test_code_of_an_ordinary_role_stays_ordinary(
    name: str, guest: psycopg.Connection, db: psycopg.Connection, client: runnel.Client
) -> None:
    carrier = CARRIERS[name]
    with contextlib.suppress(psycopg.Error):  # a range's canonical function needs a superuser: the type stays a shell
        guest.execute(carrier.before or "SELECT")
    make = "SELECT pgtrickle.create_stream_table('g.st', %s, '@yearly', %s)"
    with contextlib.suppress(psycopg.Error):
        guest.execute(make, (carrier.query, carrier.mode))
    exists = db.execute("SELECT to_regclass('g.st') IS NOT NULL").fetchone()
    assert exists is not None
    if exists[0]:
        guest.execute(carrier.after or "SELECT")
        guest.execute("INSERT INTO g.t VALUES (100, 1), (101, 2)")
        guest.execute("UPDATE g.t SET x = x + 1 WHERE id < 4; DELETE FROM g.t WHERE id = 5")
        with contextlib.suppress(runnel.RunnelError):
            client.refresh("g.st")
        with contextlib.suppress(runnel.RunnelError):
            client.verify("g.st")
        trap.analyse_state(db)
    seen = trap.counts(db)
    assert trap.harmless(seen), seen
    if carrier.runs and is_known(guest, carrier.query):
        assert exists[0], "the stream table was refused"
        assert seen.visits > 0, "the trap was not sprung"
