"""What a notebook uses: rows as Arrow and pandas, changes as they commit, and tables that Jupyter draws."""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

import runnel
from runnel.cli.main import app
from runnel.errors import RunnelError, UserError
from tests.e2e.helpers import Stream, script, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = """
CREATE TABLE orders (id int, customer text, amount numeric(10,2), at timestamptz, tags text[]);
INSERT INTO orders VALUES (1, 'a', 1.50, '2026-01-01 12:00+00', '{x,y}'), (2, NULL, NULL, NULL, NULL);
"""


def bag(rows: Any) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def test_rows_as_a_table(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, spark: SparkSession, schema: str
) -> None:
    script(db, ORDERS)
    stream("copy", "SELECT id, customer, amount, at, tags FROM orders")
    rows = client.table("copy")
    found = rows.arrow().sort_by("id")
    assert found.schema.types == [
        pa.int32(), pa.string(), pa.decimal128(10, 2), pa.timestamp("us", "UTC"), pa.string(),
    ]  # fmt: skip
    assert found.to_pylist() == [
        {"id": 1, "customer": "a", "amount": Decimal("1.50"), "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
         "tags": "{x,y}"},
        {"id": 2, "customer": None, "amount": None, "at": None, "tags": None},
    ]  # fmt: skip
    assert sorted(rows.pandas()["id"]) == [1, 2]
    assert {row.id: row.amount for row in rows.spark(spark).select("id", "amount").collect()} == {
        1: Decimal("1.50"), 2: None,
    }  # fmt: skip
    db.execute("INSERT INTO orders VALUES (3, '<b>', 1, NULL, NULL)")
    client.refresh("copy")
    assert rows.arrow().num_rows == 3, "read when asked for"
    assert "&lt;b&gt;" in rows._repr_html_() and "<b>" not in rows._repr_html_()
    with pytest.raises(UserError, match="no stream table"):
        client.table("nothing")


def test_rows_as_polars(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    pl = pytest.importorskip("polars", reason="polars is not installed")
    script(db, ORDERS)
    stream("copy", "SELECT id, customer, amount, at, tags FROM orders")
    frame = client.table("copy").polars().sort("id")
    assert frame.schema == {
        "id": pl.Int32, "customer": pl.String, "amount": pl.Decimal(10, 2), "at": pl.Datetime("us", "UTC"),
        "tags": pl.String,
    }  # fmt: skip
    assert frame.rows() == [
        (1, "a", Decimal("1.50"), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), "{x,y}"),
        (2, None, None, None, None),
    ]
    stream("nothing", "SELECT id, amount FROM orders WHERE id > 9")
    assert client.table("nothing").polars().shape == (0, 2)


def test_changes_come_once_and_in_order(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    script(db, "CREATE TABLE t (k text, n int); INSERT INTO t VALUES ('a', 1)")
    stream("sums", "SELECT k, sum(n) AS total FROM t GROUP BY k", schedule="1s")
    heard: list[runnel.client.Delta] = []
    began = threading.Event()

    def listen() -> None:
        for delta in client.subscribe("sums", 0, seconds=20):
            heard.append(delta)
            began.set()
            if any(row.get("k") == "end" for row in delta.inserted):
                return

    thread = threading.Thread(target=listen)
    thread.start()
    assert began.wait(30), "an outbox tells all rows first"
    for i in range(2, 6):
        db.execute("INSERT INTO t VALUES ('a', %s)", (i,))
        client.refresh("sums")
    db.execute("INSERT INTO t VALUES ('end', 0)")
    thread.join(60)
    assert not thread.is_alive()
    assert [delta.version for delta in heard] == list(range(1, len(heard) + 1))
    rows: list[str] = []
    for delta in heard:
        rows = [] if delta.reset else rows
        for row in bag(delta.deleted):
            rows.remove(row)
        rows += bag(delta.inserted)
    assert sorted(rows) == bag([{"k": "a", "total": 15}, {"k": "end", "total": 0}])
    # Whoever comes again goes on where it was.
    middle = heard[len(heard) // 2].version
    again = list(islice(client.subscribe("sums", middle, seconds=5), len(heard) - middle))
    assert [delta.version for delta in again] == list(range(middle + 1, len(heard) + 1))
    assert list(client.subscribe("sums", seconds=0.2)) == []
    db.execute('DELETE FROM tide.tide_outbox_messages WHERE "offset" <= 1')
    with pytest.raises(UserError, match="not kept any more"):
        list(client.subscribe("sums", 0, seconds=1))


def test_watching_in_the_terminal(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, dsn: str, schema: str
) -> None:
    script(db, "CREATE TABLE t (k text, n int); INSERT INTO t VALUES ('a', 1)")
    stream("sums", "SELECT k, sum(n) AS total FROM t GROUP BY k")
    assert list(client.subscribe("sums", seconds=0.1)) == []
    db.execute("INSERT INTO t VALUES ('a', 2)")
    client.refresh("sums")
    words = ["watch", f"{schema}.sums", "--after", "0", "--seconds", "0.5", "--dsn", dsn]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "- k=a  total=1" in told.output and "+ k=a  total=3" in told.output
    lines = [json.loads(line) for line in CliRunner().invoke(app, [*words, "--format", "json"]).stdout.splitlines()]
    assert lines[-1]["inserted"] == [{"k": "a", "total": 3}] and lines[-1]["deleted"] == [{"k": "a", "total": 1}]
    assert CliRunner().invoke(app, [*words, "--format", "xml"]).exit_code == 1


def test_numbers_keep_their_digits_and_columns_their_order(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, dsn: str, schema: str
) -> None:
    script(db, "CREATE TABLE t (long_name text, n numeric, x float8, i int8)")
    db.execute("INSERT INTO t VALUES ('a', 12345678901234567890.10, 0.1, 9007199254740993)")
    stream("copy", "SELECT long_name, n, x, i FROM t")
    # Two who begin to listen at the same moment: both hear all of it.
    with ThreadPoolExecutor(2) as both:
        heard = list(both.map(lambda _: list(client.subscribe("copy", 0, seconds=1)), range(2)))
    expected = {"long_name": "a", "n": Decimal("12345678901234567890.10"), "x": 0.1, "i": 9007199254740993}
    for deltas in heard:
        (row,) = (row for delta in deltas for row in delta.inserted)
        assert row == expected and list(row) == list(expected) and type(row["x"]) is float
    words = ["watch", f"{schema}.copy", "--after", "0", "--seconds", "0.5", "--dsn", dsn]
    assert (
        "+ long_name=a  n=12345678901234567890.10  x=0.1  i=9007199254740993" in CliRunner().invoke(app, words).output
    )
    piped = CliRunner().invoke(app, [*words, "--format", "json"]).stdout
    assert '{"long_name": "a", "n": 12345678901234567890.10, "x": 0.1, "i": 9007199254740993}' in piped


def test_a_stranger_hears_nothing(db: psycopg.Connection, client: runnel.Client, stream: Stream, dsn: str) -> None:
    script(db, "CREATE TABLE t (k text); INSERT INTO t VALUES ('a')")
    stream("secrets", "SELECT k FROM t")
    if not value(db, "SELECT count(*) FROM pg_roles WHERE rolname = 'e2e_stranger'"):
        db.execute("CREATE ROLE e2e_stranger LOGIN")
    db.execute("GRANT USAGE ON SCHEMA pgtrickle TO e2e_stranger")
    with contextlib.closing(runnel.connect(make_conninfo(dsn, user="e2e_stranger"))) as stranger:
        with pytest.raises(RunnelError):
            list(stranger.subscribe("secrets", 0, seconds=0.2))
        assert list(client.subscribe("secrets", seconds=0.1)) == []
        with pytest.raises(RunnelError):
            list(stranger.subscribe("secrets", 0, seconds=0.2))


def test_the_notebook_runs(
    database: str, engine: runnel.Engine, monkeypatch: pytest.MonkeyPatch, db: psycopg.Connection
) -> None:
    """Cell by cell; the last expression of a cell is what Jupyter would show."""
    monkeypatch.setenv("RUNNEL_DSN", database)
    cells = json.loads((Path(__file__).parents[2] / "docs" / "notebook.ipynb").read_text())["cells"]
    scope: dict[str, Any] = {}
    shown = []
    for text in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
        *body, last = ast.parse(text).body
        exec(compile(ast.Module(body, []), "notebook", "exec"), scope)  # noqa: S102  (our own cells)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), scope))  # noqa: S307
        else:
            exec(compile(ast.Module([last], []), "notebook", "exec"), scope)  # noqa: S102
    status, plan, arrow, frame, (deleted, inserted), history, _ = shown
    assert "<th>staleness</th>" in status._repr_html_() and "<pre" in plan._repr_html_()
    assert arrow.num_rows == 3 and len(frame) == 3 and len(history) >= 2
    assert [row["region"] for row in (*deleted, *inserted)] == ["region 0", "region 0"]
    assert inserted[0]["revenue"] - deleted[0]["revenue"] == 100
    assert rows_left(db) == 0


def rows_left(db: psycopg.Connection) -> int:
    return int(value(db, "SELECT count(*) FROM pg_class WHERE relname LIKE 'notebook%'"))
