"""Stream tables over stream tables: chains, diamonds that are visible together, and what happens between them."""

from __future__ import annotations

import threading
import time

import psycopg

import runnel
from tests.e2e.helpers import Check, Stream, eventually, rows, script, value

SALES = """
CREATE TABLE sales (id int PRIMARY KEY, shop int, amount int);
INSERT INTO sales SELECT i, i % 4, i FROM generate_series(1, 40) i;
"""


def test_a_chain_moves_by_deltas_from_end_to_end(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES)
    stream("per_shop", "SELECT shop, sum(amount) AS total, count(*) AS n FROM sales GROUP BY shop")
    stream("big", "SELECT shop, total FROM per_shop WHERE total > 200")
    stream("summary", "SELECT count(*) AS shops, max(total) AS best FROM big")
    stream("ranked", "SELECT shop, rank() OVER (ORDER BY total DESC) AS place FROM big", mode="AUTO")
    stream("joined", "SELECT s.id, p.total FROM sales s JOIN per_shop p ON p.shop = s.shop WHERE s.id < 5")
    for change in (
        "UPDATE sales SET amount = amount + 100 WHERE shop = 1",
        "DELETE FROM sales WHERE shop = 2",
        "INSERT INTO sales VALUES (100, 9, 5000)",
        "UPDATE sales SET shop = 2 WHERE id % 3 = 0",
    ):
        db.execute(change.encode())
        check("summary", "ranked", "joined")
        assert client.history("summary")[0].action == "DIFFERENTIAL"
        assert client.history("big")[0].action == "DIFFERENTIAL"
    db.execute("TRUNCATE sales")
    check("summary", "ranked", "joined")
    assert rows(db, "SELECT * FROM summary") == [(0, None)]
    check("per_shop", "big")


def test_a_row_that_is_gone_again_upstream_hurts_nobody(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    """Its reader sees both refreshes at once, and must not divide by what only the first of them held."""
    script(db, SALES)
    stream("per_shop", "SELECT shop, sum(amount) AS total FROM sales GROUP BY shop")
    stream("shares", "SELECT shop, 1000 / total AS share FROM per_shop", schedule="1h")
    for change in ("INSERT INTO sales VALUES (100, 9, 0)", "UPDATE sales SET amount = 10 WHERE id = 100"):
        db.execute(change.encode())
        client.refresh("per_shop")
    check("shares")
    assert client.history("shares")[0].action == "DIFFERENTIAL"
    assert value(db, "SELECT share::int FROM shares WHERE shop = 9") == 100


def test_the_scheduler_carries_a_change_down_the_chain(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    script(db, SALES)
    stream("a", "SELECT shop, sum(amount) AS s FROM sales GROUP BY shop", schedule="calculated")
    stream("b", "SELECT shop, s FROM a WHERE s > 0", schedule="calculated")
    stream("c", "SELECT sum(s) AS s FROM b", schedule="1s")
    db.execute("INSERT INTO sales VALUES (100, 50, 1000)")
    eventually(lambda: value(db, "SELECT s FROM c") == 1820, what="the change never arrived")
    assert client.history("c")[0].initiated_by == "SCHEDULER"


def test_both_arms_of_a_diamond_are_visible_together(
    db: psycopg.Connection, dsn: str, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES)
    stream("base", "SELECT shop, amount FROM sales WHERE amount > 0", schedule="1s")
    stream("left_arm", "SELECT sum(amount) AS s FROM base", schedule="1s")
    stream("right_arm", "SELECT shop, sum(amount) AS s FROM base GROUP BY shop", schedule="1s")
    stream(
        "tip",
        "SELECT l.s AS l, r.s AS r FROM left_arm l CROSS JOIN (SELECT sum(s) AS s FROM right_arm) r",
        schedule="1s",
    )
    seen: set[tuple[object, ...]] = set()
    stop = threading.Event()

    def poll() -> None:
        with psycopg.connect(dsn, autocommit=True) as reader:
            while not stop.is_set():
                found = reader.execute(
                    "SELECT (SELECT s FROM left_arm), (SELECT sum(s) FROM right_arm), l, r FROM tip"
                ).fetchone()
                seen.add(tuple(int(v) for v in found or ()))
                time.sleep(0.005)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for i in range(4):
            db.execute(
                "INSERT INTO sales SELECT i, i %% 4, 1 FROM generate_series(%s::int, %s::int) i",
                (1000 + i * 10, 1009 + i * 10),
            )
            expected = 820 + 10 * (i + 1)
            eventually(lambda e=expected: value(db, "SELECT l FROM tip") == e)
    finally:
        stop.set()
        thread.join()
    assert len(seen) >= 4, "the reader saw several states"
    assert all(len(set(state)) == 1 for state in seen), f"arms differ: {seen}"
    check("tip")


def test_a_stream_table_may_gain_and_lose_readers(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES)
    stream("base", "SELECT shop, amount FROM sales")
    db.execute("DELETE FROM sales WHERE id = 1")
    stream("one", "SELECT sum(amount) AS s FROM base")
    db.execute("DELETE FROM sales WHERE id = 2")
    check("one")
    stream("two", "SELECT shop, count(*) AS n FROM base GROUP BY shop")
    db.execute("DELETE FROM sales WHERE id = 3")
    check("one", "two")
    client.drop_stream_table("one")
    client.drop_stream_table("two")
    db.execute("DELETE FROM sales WHERE id = 4")
    check("base")
    log = (
        "SELECT count(*) FROM pg_class WHERE relname = 'log_' || (SELECT pgt_id FROM pgtrickle.pgt_stream_tables "
        "WHERE pgt_name = 'base' AND pgt_schema = current_schema())"
    )
    assert value(db, log) == 0, "without readers there is no change log"
    stream("three", "SELECT max(amount) AS m FROM base")
    db.execute("DELETE FROM sales WHERE id = 40")
    check("three")


def test_altering_the_middle_rebuilds_what_reads_it(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SALES)
    stream("middle", "SELECT shop, amount FROM sales WHERE amount > 10")
    stream("tip", "SELECT shop, sum(amount) AS s FROM middle GROUP BY shop")
    client.alter_stream_table("middle", query="SELECT shop, amount FROM sales WHERE amount <= 10")
    check("tip")
    assert value(db, "SELECT sum(s)::int FROM tip") == 55
    db.execute("UPDATE sales SET amount = 1")
    check("tip")


def test_what_a_trigger_writes_between_two_refreshes_of_a_diamond_counts_once(
    db: psycopg.Connection, stream: Stream, check: Check
) -> None:
    """One branch's trigger writes to what the other branch reads, inside the transaction that refreshes both."""
    script(db, SALES)
    db.execute("CREATE TABLE seen (shop int, amount int)")
    db.execute(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO seen VALUES (NEW.shop, 1); RETURN NULL; END $$"
    )
    stream("first", "SELECT shop, sum(amount) AS total FROM sales GROUP BY shop")
    stream(
        "second", "SELECT shop, sum(amount) AS n FROM (TABLE seen UNION ALL SELECT shop, 0 FROM sales) x GROUP BY shop"
    )
    stream("both", "SELECT f.shop, f.total, s.n FROM first f JOIN second s ON s.shop = f.shop")
    db.execute("CREATE TRIGGER note AFTER INSERT ON first FOR EACH ROW EXECUTE FUNCTION note()")
    for n in range(3):
        db.execute("INSERT INTO sales VALUES (%s, 1, 7), (%s, %s, 7)", (100 + n, 200 + n, 50 + n))
        check("first", "second", "both")
    noted = value(db, "SELECT sum(amount) FROM seen")
    check("second")
    assert noted > 0 and value(db, "SELECT sum(n) FROM second") == value(db, "SELECT sum(amount) FROM seen")
