"""By whom a refresh was evaluated: the counts in the history are those of the rows that were there."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from typer.testing import CliRunner

import runnel
from runnel.cli.main import app
from runnel.model.work import WorkDone
from runnel.spark.session import SMALL_ROWS
from tests.e2e.helpers import Stream, last_refresh, value
from tests.sampling import sampled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, total numeric(10,2));
INSERT INTO customers SELECT i, 'c' || i % 3 FROM generate_series(1, 40) i;
INSERT INTO orders SELECT i, i % 40 + 1, i FROM generate_series(1, 400) i;
"""
JOINED = "SELECT o.id, c.country, o.total FROM orders o JOIN customers c ON c.id = o.customer"
GROUPS = "SELECT customer, sum(total) AS usd FROM orders GROUP BY customer"


@pytest.fixture(autouse=True)
def usual_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run that makes everything large."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", SMALL_ROWS)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch, usual_threshold: None) -> None:
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)


def work(client: runnel.Client, name: str) -> WorkDone | None:
    return last_refresh(client, name).work


def test_few_rows_are_counted_one_by_one(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    db.execute(TABLES.encode())
    stream("joined", JOINED)
    assert work(client, "joined") == WorkDone(plans=1, driver_rows=400 + 40 + 400)
    db.execute("INSERT INTO orders VALUES (401, 1, 1), (402, 1, 2), (403, 2, 3), (404, NULL, 4)")
    client.refresh("joined")
    read, joined = 4 + 2, 3
    assert work(client, "joined") == WorkDone(plans=1, driver_rows=read + joined)
    assert last_refresh(client, "joined").spark_jobs == 0


def test_what_needs_no_join_stays_in_postgresql(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    db.execute(TABLES.encode())
    stream("groups", GROUPS)
    db.execute("UPDATE orders SET total = total + 1 WHERE id <= 5")
    client.refresh("groups")
    assert last_refresh(client, "groups").changes_read == 10
    assert work(client, "groups") == WorkDone()
    assert str(work(client, "groups")) == "PostgreSQL alone"


def test_a_refresh_with_nothing_to_do_has_no_work(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    db.execute(TABLES.encode())
    stream("joined", JOINED)
    ask(db, "joined")
    idle = last_refresh(client, "joined")
    assert (idle.action, idle.changes_read, idle.work, idle.spark_jobs) == ("DIFFERENTIAL", 0, None, 0)
    stored = "SELECT work IS NULL FROM pgtrickle.get_refresh_history('joined') ORDER BY refresh_id DESC LIMIT 1"
    assert value(db, stored) is True


@pytest.mark.usefixtures("everything_is_large")
@pytest.mark.parametrize("joins", sampled([False, True], every=2), ids=["PostgreSQL joins", "Spark joins"])
def test_many_rows_are_counted_in_tasks(
    db: psycopg.Connection,
    client: runnel.Client,
    stream: Stream,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    joins: bool,
) -> None:
    """Where Spark joins, tasks also read the customers."""
    monkeypatch.setattr("runnel.spark.session.Sessions.joins", joins)
    customers = 40 if joins else 0
    db.execute(TABLES.encode())
    counted = so_far(spark)
    stream("joined", JOINED)
    first = work(client, "joined")
    assert first is not None
    assert (first.read_rows, first.written_rows, first.driver_rows) == (400 + customers, 400, 400)
    assert (first.jobs, first.tasks) == so_far(spark, counted), "as many as Spark has started"
    printed = "SELECT sum(length(id::text || ',' || country || ',' || total)) FROM joined"
    assert first.written_bytes > value(db, printed) and first.read_bytes > 0

    db.execute("UPDATE orders SET total = total + 1 WHERE id <= 50")
    counted = so_far(spark)
    client.refresh("joined")
    changed = work(client, "joined")
    assert changed is not None
    assert (changed.read_rows, changed.written_rows, changed.driver_rows) == (100 + customers, 100, 100)
    assert (changed.jobs, changed.tasks) == so_far(spark, counted)
    assert last_refresh(client, "joined").spark_jobs == changed.jobs


def so_far(spark: SparkSession, since: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Jobs and tasks of the whole application, by the counters of Spark's schedulers."""
    context: Any = spark.sparkContext._jsc.sc()
    jobs, tasks = context.dagScheduler().numTotalJobs(), context.taskScheduler().nextTaskId()
    return int(jobs) - since[0], int(tasks) - since[1]


def test_the_terminal_says_by_whom(db: psycopg.Connection, client: runnel.Client, stream: Stream, dsn: str) -> None:
    db.execute(TABLES.encode())
    stream("joined", JOINED)
    stream("groups", GROUPS)
    db.execute("INSERT INTO orders VALUES (401, 1, 1)")
    client.refresh("groups")
    ask(db, "groups")
    history = said("history", "--dsn", dsn)
    assert re.search(r"joined .* 1 prepared plan, 840 rows through the driver", history)
    assert re.search(r"groups .* \+1 -1 +PostgreSQL alone", history)
    assert re.search(r"groups .* \+0 -0 +- *$", history, re.MULTILINE), "nothing was to do"
    status = said("status", "--dsn", dsn)
    assert "evaluated by" in status
    assert re.search(r"joined .* driver: 840 rows", status)
    (newest,) = json.loads(said("history", "joined", "--limit", "1", "--json", "--dsn", dsn))
    assert newest["work"] == WorkDone(plans=1, driver_rows=840).as_json()


def ask(db: psycopg.Connection, name: str) -> None:
    """Let the engine find out that there is nothing to do: in an old snapshot the call itself cannot tell."""
    with db.transaction():
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        db.execute("SELECT pgtrickle.refresh_stream_table(%s)", (name,))


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return str(result.output)


def evaluators(client: runnel.Client, name: str) -> list[str]:
    lines = client.explain(name).splitlines()
    start = lines.index("Who evaluates")
    return [line.strip() for line in lines[start + 1 : lines.index("", start)]]


def test_explain_says_who_evaluates_as_a_refresh_decides(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.execute(TABLES.encode())
    db.execute("ANALYZE customers, orders")
    stream("joined", JOINED)
    stream("top", f"SELECT customer, usd FROM ({GROUPS}) g ORDER BY usd DESC, customer LIMIT 3")
    db.execute("UPDATE orders SET total = total + 1 WHERE id <= 5")
    assert evaluators(client, "joined") == [
        "tasks do the work above 100,000 rows, the driver does it below (--tasks-above)",
        "the stream table: changes by the driver, a rebuild by the driver",
        "o: about 10 rows changed, read by the driver; all of it, about 400 rows, by the driver",
        "c: no changes known; all of it, about 40 rows, by the driver",
    ]
    assert evaluators(client, "top")[1:] == [
        "stage 0: changes by PostgreSQL alone, a rebuild by the driver",
        "orders: about 10 rows changed, read by PostgreSQL; all of it, about 400 rows, by the driver",
        "stage 1: changes by PostgreSQL alone, a rebuild by the driver",
        "g: changes read by PostgreSQL; all of it by the driver",
        "stage 2: changes by PostgreSQL alone, a rebuild by PostgreSQL alone",
    ]
    client.refresh("joined")
    assert "Last evaluated (DIFFERENTIAL): 1 prepared plan, 25 rows through the driver" in client.explain("joined")

    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 50)
    db.execute("UPDATE orders SET total = total + 1 WHERE id <= 30")
    assert evaluators(client, "joined") == [
        "tasks do the work above 50 rows, the driver does it below (--tasks-above)",
        "the stream table: changes by tasks in slices, a rebuild by tasks in slices",
        "o: about 60 rows changed, read by tasks; all of it, about 400 rows, by tasks",
        "c: no changes known; all of it, about 40 rows, by the driver",
    ]
    client.refresh("joined")
    done = work(client, "joined")
    assert done is not None
    assert (done.read_rows, done.driver_rows) == (60, 60), "customers are joined where they are"


def test_explain_speaks_of_rebuilds_where_every_refresh_is_one(
    db: psycopg.Connection, client: runnel.Client, stream: Stream
) -> None:
    db.execute(TABLES.encode())
    db.execute("ANALYZE customers, orders")
    stream("groups", GROUPS, mode="FULL")
    assert evaluators(client, "groups")[1:] == [
        "the stream table: a rebuild by the driver",
        "orders: all of it, about 400 rows, by the driver",
    ]
    stream("sampled", "SELECT current_setting('work_mem') AS m, count(*) AS n FROM orders", mode="FULL")
    text = client.explain("sampled")
    assert "Who evaluates" not in text
    assert "Each refresh evaluates the query in PostgreSQL" in text
    assert "Last evaluated (INITIAL): PostgreSQL alone" in text
