"""WITH RECURSIVE: after each change the stream table equals its query, without a FULL refresh."""

from __future__ import annotations

import random

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, last_refresh, rows, script, value
from tests.sampling import sampled

STAFF = """
CREATE TABLE staff (id int PRIMARY KEY, boss int, name text, pay numeric(10,2));
INSERT INTO staff SELECT i, CASE WHEN i > 1 THEN i / 2 END, 'n' || i, i * 10 FROM generate_series(1, 31) i;
"""
CHART = """
WITH RECURSIVE chart(id, path, depth) AS (
  SELECT id, name, 0 FROM staff WHERE boss IS NULL
  UNION ALL
  SELECT s.id, c.path || '/' || s.name, c.depth + 1 FROM chart c JOIN staff s ON s.boss = c.id
) SELECT id, path, depth FROM chart
"""
REACH = """
WITH RECURSIVE reach AS (
  SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM reach r JOIN edges e ON e.src = r.dst
) SELECT src, dst FROM reach
"""


def test_an_organisation_chart_follows_hires_moves_and_dismissals(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, STAFF)
    stream("chart", CHART)
    assert "recursion chart (UNION ALL)" in client.explain("chart")
    for change in (
        "INSERT INTO staff VALUES (40, 31, 'forty', 1), (41, 40, 'forty-one', 2)",
        "UPDATE staff SET boss = 15 WHERE id = 2",
        "UPDATE staff SET name = 'chief' WHERE id = 1",
        "UPDATE staff SET pay = pay + 1",
        "DELETE FROM staff WHERE id = 3",
        "UPDATE staff SET boss = NULL WHERE id IN (6, 7)",
        "DELETE FROM staff",
        "INSERT INTO staff VALUES (1, NULL, 'first', 1), (2, 1, NULL, 1), (3, 2, 'third', 1)",
    ):
        db.execute(change.encode())
        check("chart")
        assert last_refresh(client, "chart").action == "DIFFERENTIAL"
    assert rows(db, "SELECT * FROM chart ORDER BY id") == [(1, "first", 0), (2, None, 1), (3, None, 2)]


def test_only_the_moved_subtree_is_written(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE staff (id int PRIMARY KEY, boss int, name text);"
        "INSERT INTO staff SELECT i, nullif(i / 2, 0), 'n' || i FROM generate_series(1, 4095) i",
    )
    stream("chart", CHART)
    db.execute("UPDATE staff SET boss = 3 WHERE id = 1024")
    check("chart")
    refresh = last_refresh(client, "chart")
    assert (refresh.action, refresh.rows_inserted, refresh.rows_deleted) == ("DIFFERENTIAL", 3, 3)
    written = value(
        db,
        "SELECT count(*) FROM pgtrickle_state.s_{}_2 WHERE xmin = (SELECT xmin FROM chart WHERE id = 1024)".format(
            value(db, "SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = 'chart'::regclass")
        ),
    )
    assert written == 3, "the hidden rows of the rest of the tree stay as they are"


def test_reachability_in_a_graph_with_cycles_follows_random_changes(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    chance = random.Random(1)  # noqa: S311
    db.execute("CREATE TABLE edges (src int, dst int)")
    stream("reach", REACH)

    def node() -> str:
        return chance.choice([*"0123456789", "NULL"])

    for _ in range(30):
        with db.transaction():
            for _ in range(chance.randint(1, 4)):
                order = f"md5(ctid::text || {chance.random()})"
                pick = f"(SELECT ctid FROM edges ORDER BY {order} LIMIT {chance.randint(1, 2)})"
                statement = chance.choice(
                    [
                        f"INSERT INTO edges VALUES ({node()}, {node()}), ({node()}, {node()})",
                        f"DELETE FROM edges WHERE ctid IN {pick}",
                        f"UPDATE edges SET dst = {node()} WHERE ctid IN {pick}",
                    ]
                )
                db.execute(statement.encode())
        check("reach")
    assert {h.action for h in client.history("reach", 100)} == {"INITIAL", "DIFFERENTIAL"}


def test_a_cycle_that_feeds_itself_goes_when_its_only_entry_goes(
    db: psycopg.Connection, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE edges (src int, dst int); INSERT INTO edges VALUES (1, 2), (2, 3), (3, 2), (1, 4), (4, 3)")
    stream(
        "seen",
        "WITH RECURSIVE seen(node) AS (SELECT 1 UNION SELECT e.dst FROM seen s, edges e WHERE e.src = s.node) "
        "SELECT node FROM seen",
    )
    db.execute("DELETE FROM edges WHERE (src, dst) = (1, 2)")
    check("seen")
    assert rows(db, "SELECT node FROM seen ORDER BY 1") == [(1,), (2,), (3,), (4,)], "4 still leads there"
    db.execute("DELETE FROM edges WHERE src = 4")
    check("seen")
    assert rows(db, "SELECT node FROM seen ORDER BY 1") == [(1,), (4,)]


PARTS = """
CREATE TABLE parts (whole text, part text, qty int);
CREATE TABLE prices (part text, price numeric(8,2));
INSERT INTO parts VALUES ('bike', 'wheel', 2), ('bike', 'frame', 1), ('wheel', 'spoke', 32), ('wheel', 'rim', 1),
  ('wheel', 'spoke', 4), ('frame', 'bolt', 8), ('rim', 'bolt', 2), ('bike', NULL, 3), ('wheel', 'nut', NULL);
INSERT INTO prices VALUES ('spoke', 0.10), ('bolt', 0.25), ('rim', 9.00), (NULL, 1.00);
"""
NEEDS = """
WITH RECURSIVE needs AS (
  SELECT p.whole, p.part, p.qty FROM parts p WHERE p.whole = 'bike'
  UNION ALL
  SELECT n.whole, p.part, n.qty * p.qty FROM needs n JOIN parts p ON p.whole = n.part
) """
BILLS = {
    "rows": "SELECT part, qty FROM needs",
    "totals": "SELECT part, sum(qty) AS qty, count(*) AS n FROM needs GROUP BY part",
    "priced": "SELECT n.whole, sum(n.qty * p.price) AS cost FROM needs n JOIN prices p ON p.part = n.part "
    "GROUP BY n.whole",
    "twice": "SELECT a.part, b.qty FROM needs a JOIN needs b ON b.part = a.part AND a.qty < b.qty",
    "left": "SELECT n.part, p.price FROM needs n LEFT JOIN prices p ON p.part = n.part",
}


@pytest.mark.parametrize("name", sampled(BILLS, every=4))
def test_a_bill_of_materials_keeps_duplicates(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, PARTS)
    stream("bill", NEEDS + BILLS[name])
    for change in (
        "INSERT INTO parts VALUES ('wheel', 'spoke', 4), ('wheel', 'spoke', 4)",
        "UPDATE parts SET qty = qty + 1 WHERE part = 'wheel'; UPDATE prices SET price = price + 1 WHERE part = 'bolt'",
        "DELETE FROM parts WHERE ctid = (SELECT min(ctid) FROM parts WHERE part = 'spoke' AND qty = 4)",
        "UPDATE parts SET whole = 'frame' WHERE whole = 'rim'; INSERT INTO parts VALUES ('bolt', 'thread', 1)",
        "UPDATE parts SET part = 'rim' WHERE part IS NULL; DELETE FROM parts WHERE qty IS NULL",
        "DELETE FROM parts WHERE part = 'wheel'; DELETE FROM prices WHERE part IS NULL",
    ):
        with db.transaction():
            script(db, change)
        check("bill")
        assert last_refresh(client, "bill").action == "DIFFERENTIAL"


TWO_INPUTS = {
    "union_all": "WITH RECURSIVE r(n, cost) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.cost + t.toll FROM r "
    "JOIN edges e ON e.src = r.n JOIN tolls t ON t.kind = e.kind WHERE r.cost < 9) SELECT n, cost FROM r",
    "union": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e ON e.src = r.n "
    "JOIN tolls t USING (kind) WHERE t.toll < 4) SELECT n FROM r",
    "self_join": "WITH RECURSIVE r AS (SELECT n FROM starts UNION SELECT b.dst FROM r, edges a, edges b "
    "WHERE a.src = r.n AND b.src = a.dst AND a.kind <> b.kind) SELECT n FROM r",
    "derived": "WITH RECURSIVE cheap AS (SELECT kind, min(toll) AS toll FROM tolls GROUP BY kind), "
    "r(n, hops) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.hops + 1 FROM r JOIN edges e ON e.src = r.n "
    "JOIN cheap c ON c.kind = e.kind AND c.toll + r.hops < 5) SELECT n, hops, count(*) AS ways FROM r GROUP BY n, hops",
    "outer_all": "WITH RECURSIVE r(n, cost) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.cost + "
    "coalesce(t.toll, 2) FROM r JOIN edges e ON e.src = r.n LEFT JOIN tolls t ON t.kind = e.kind WHERE r.cost < 5) "
    "SELECT n, cost FROM r",
    "outer_set": "WITH RECURSIVE r(n, known) AS (SELECT n, true FROM starts UNION SELECT e.dst, t.kind IS NOT NULL "
    "FROM r JOIN edges e ON e.src = r.n LEFT JOIN tolls t ON t.kind = e.kind) SELECT n, known FROM r",
    "two_recursions": "WITH RECURSIVE r AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e "
    "ON e.src = r.n), back AS (SELECT kind AS n FROM tolls UNION SELECT e.src FROM back b JOIN edges e ON e.dst = b.n "
    "JOIN r ON r.n = e.src) SELECT r.n, b.n AS b FROM r LEFT JOIN back b ON b.n = r.n",
}


@pytest.mark.parametrize("name", sampled(TWO_INPUTS, every=4))
def test_several_changed_inputs_at_once(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TABLE starts (n int); CREATE TABLE edges (src int, dst int, kind int);"
        "CREATE TABLE tolls (kind int, toll int); INSERT INTO starts VALUES (1), (1), (NULL);"
        "INSERT INTO edges VALUES (1, 2, 1), (2, 3, 2), (3, 1, 1), (3, 4, 3), (2, 2, 2), (4, NULL, 1);"
        "INSERT INTO tolls VALUES (1, 1), (2, 3), (2, 3), (NULL, 1); ANALYZE starts, edges, tolls",
    )
    stream("result", TWO_INPUTS[name])
    for change in (
        "INSERT INTO tolls VALUES (3, 2); INSERT INTO edges VALUES (4, 5, 3), (5, 6, 2), (2, 5, 1); "
        "INSERT INTO starts VALUES (6)",
        "DELETE FROM edges WHERE (src, dst) = (2, 3); UPDATE tolls SET toll = toll + 1 WHERE kind = 1",
        "UPDATE edges SET kind = 3 WHERE kind = 2; UPDATE tolls SET kind = 2 WHERE kind = 3; DELETE FROM starts "
        "WHERE n IS NULL",
        "INSERT INTO edges VALUES (6, 1, 1), (1, 6, 2), (6, NULL, 2), (NULL, 1, 2); DELETE FROM tolls WHERE ctid = "
        "(SELECT min(ctid) FROM tolls WHERE kind = 2); INSERT INTO starts VALUES (NULL), (5)",
        "DELETE FROM starts; DELETE FROM edges WHERE src = 1",
        "INSERT INTO starts VALUES (3), (2); DELETE FROM tolls",
    ):
        with db.transaction():
            script(db, change)
        check("result")
        assert last_refresh(client, "result").action == "DIFFERENTIAL"


def test_counters_need_no_table_in_the_recursive_member(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE spans (k int, lo int, hi int); INSERT INTO spans VALUES (1, 1, 5), (2, 3, 3)")
    stream(
        "days",
        "WITH RECURSIVE d AS (SELECT k, lo AS n, hi FROM spans UNION ALL SELECT k, n + 1, hi FROM d WHERE n < hi) "
        "SELECT k, n FROM d",
    )
    stream(
        "joined",
        "WITH RECURSIVE d(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM d WHERE n < 10) "
        "SELECT d.n, s.k FROM d LEFT JOIN spans s ON d.n BETWEEN s.lo AND s.hi AND s.k = d.n % 3",
        mode="AUTO",
    )
    for change in (
        "INSERT INTO spans VALUES (3, 7, 9), (1, 4, 5), (4, NULL, 2)",
        "UPDATE spans SET hi = hi + 2",
        "DELETE FROM spans WHERE k = 1",
    ):
        db.execute(change.encode())
        check("days", "joined")
        assert last_refresh(client, "days").action == "DIFFERENTIAL"


def test_truncate_rebuilds_and_an_empty_start_stays_empty(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE edges (src int, dst int)")
    stream("reach", REACH)
    stream("anew", REACH, mode="FULL")
    assert rows(db, "SELECT * FROM reach") == []
    db.execute("INSERT INTO edges VALUES (1, 2), (2, 1), (2, 3)")
    check("reach", "anew")
    db.execute("TRUNCATE edges")
    check("reach")
    assert rows(db, "SELECT * FROM reach") == []
    db.execute("INSERT INTO edges VALUES (7, 8), (8, 9)")
    check("reach")
    assert last_refresh(client, "reach").action == "DIFFERENTIAL"
    assert rows(db, "SELECT * FROM reach ORDER BY 1, 2") == [(7, 8), (7, 9), (8, 9)]


def test_recursion_over_a_stream_table_and_a_view(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        STAFF + "CREATE TABLE former (id int); CREATE VIEW present AS SELECT id, boss FROM staff "
        "WHERE pay > 20; CREATE VIEW above AS WITH RECURSIVE a AS (SELECT id, boss FROM present UNION "
        "SELECT a.id, p.boss FROM a JOIN present p ON p.id = a.boss) SELECT id, boss FROM a",
    )
    stream("links", "SELECT boss, count(*) AS n, max(id) AS last FROM staff GROUP BY boss")
    stream(
        "climb",
        "WITH RECURSIVE r(at, n) AS (SELECT boss, n FROM links WHERE boss > 3 UNION ALL "
        "SELECT l.boss, r.n + l.n FROM r JOIN links l ON l.last = r.at) SELECT at, n FROM r",
    )
    stream("bosses", "SELECT boss, count(*) AS n FROM above GROUP BY boss")
    for change in (
        "INSERT INTO staff VALUES (50, 7, 'x', 99), (51, 50, 'y', 98)",
        "UPDATE staff SET pay = 5 WHERE id = 15",
        "UPDATE staff SET boss = 9 WHERE id IN (10, 14)",
        "DELETE FROM staff WHERE id BETWEEN 4 AND 6",
    ):
        db.execute(change.encode())
        check("links", "climb", "bosses")
        assert last_refresh(client, "climb").action == last_refresh(client, "bosses").action == "DIFFERENTIAL"


def test_a_cycle_out_of_reach_does_not_keep_union_all_busy(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, "CREATE TABLE edges (src int, dst int); INSERT INTO edges VALUES (1, 2), (2, 3), (3, 4)")
    stream(
        "paths",
        "WITH RECURSIVE r(n, depth) AS (SELECT 1, 0 UNION ALL SELECT e.dst, r.depth + 1 FROM r "
        "JOIN edges e ON e.src = r.n) SELECT n, depth FROM r",
    )
    with db.transaction():
        script(db, "DELETE FROM edges WHERE src = 1; INSERT INTO edges VALUES (4, 2), (3, 2), (1, 5)")
    check("paths")
    assert last_refresh(client, "paths").action == "DIFFERENTIAL"
    assert rows(db, "SELECT * FROM paths ORDER BY 1") == [(1, 0), (5, 1)]


def test_a_query_that_never_ends_says_so(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(db, "CREATE TABLE edges (src int, dst int); INSERT INTO edges VALUES (1, 2), (2, 3)")
    stream(
        "paths",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT e.dst FROM r JOIN edges e ON e.src = r.n) SELECT n FROM r",
    )
    db.execute("INSERT INTO edges VALUES (3, 2)")
    with pytest.raises(runnel.RunnelError, match="recursive query r has not come to an end"):
        client.refresh("paths")
    assert rows(db, "SELECT n FROM paths ORDER BY n") == [(1,), (2,), (3,)], "the last good result stays"
    db.execute("DELETE FROM edges WHERE src = 3")
    assert client.verify("paths").ok


REFUSED = {
    "DISTINCT, an aggregate or a window function in a recursive member": "WITH RECURSIVE r AS (SELECT id, boss "
    "FROM staff UNION ALL SELECT DISTINCT s.id, s.boss FROM r JOIN staff s ON s.boss = r.id) SELECT * FROM r",
    "the recursive reference inside a subquery": "WITH RECURSIVE r AS (SELECT id FROM staff UNION "
    "SELECT s.id FROM (SELECT id FROM r WHERE id > 3) x JOIN staff s ON s.boss = x.id) SELECT * FROM r",
    "the recursive reference inside another CTE": "WITH RECURSIVE r AS (SELECT id FROM staff UNION "
    "(WITH x AS (SELECT id FROM r) SELECT s.id FROM x JOIN staff s ON s.boss = x.id)) SELECT * FROM r",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_recursions_are_recomputed_and_say_why(
    reason: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, STAFF)
    with pytest.raises(runnel.RunnelError, match=reason):
        stream("result", REFUSED[reason])
    stream("result", REFUSED[reason], mode="AUTO")
    db.execute("UPDATE staff SET boss = 1 WHERE id = 20")
    check("result")
    assert last_refresh(client, "result").action == "FULL"
