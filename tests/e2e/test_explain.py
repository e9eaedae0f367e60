"""`explain` draws what a refresh does, in the query's own words, and marks what costs more than a change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import runnel
from runnel.explain.render import WIDTH, render_plan
from runnel.server.embedded import EmbeddedServer
from runnel.sql.compile import compile_query
from tests.conftest import TEMPLATE
from tests.corpus.cases import load, topics
from tests.corpus.databases import without_engine
from tests.e2e.helpers import Stream, script
from tests.sampling import sampled

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text, region text);
CREATE TABLE orders (
    id int PRIMARY KEY, customer_id int, total numeric(10,2), status text, at timestamptz, tags text[]
);
CREATE TABLE emp (id int PRIMARY KEY, boss int, name text)
"""


@pytest.fixture
def conn(own_database: str) -> Iterator[psycopg.Connection]:
    """A database with the tables, and no engine: planning needs none."""
    with psycopg.connect(own_database, autocommit=True) as connected:
        script(connected, TABLES)
        yield connected


def drawn(conn: psycopg.Connection, query: str) -> list[str]:
    plan = compile_query(conn, query, settings={}).plan
    assert plan is not None, query
    lines = list(render_plan(plan, "public.result"))
    assert all(len(line) <= WIDTH for line in lines if "CREATE INDEX" not in line)
    return lines


def marks(lines: list[str]) -> list[str]:
    """The marks of the summary, with the statement that follows."""
    summary = lines[lines.index("Cost") :]
    return [line.strip() for line in summary if line.startswith(("  ! ", "    CREATE"))]


def test_a_join_is_drawn_from_the_stream_table_to_its_sources(conn: psycopg.Connection) -> None:
    query = (
        "SELECT c.region, sum(o.total) AS s, max(o.at) AS m FROM orders o JOIN customers c ON c.id = o.customer_id "
        "WHERE o.status <> 'x' GROUP BY c.region HAVING sum(o.total) > 10"
    )
    lines = drawn(conn, query)
    assert lines[: lines.index("")] == [
        "public.result: groups by c.region",
        "│  delta: output after - before, for touched groups",
        "│  sum(o.total): counters",
        "│  max(o.at): a bag of its values, a state row per value; read at one end or counted",
        "│  having sum(o.total) > 10",
        "└─ join on c.id = o.customer_id",
        "   │  delta: one term per changed input, the others narrowed by its keys",
        "   ├─ o: table public.orders",
        "   │     filter: o.status <> 'x'",
        "   │     ! public.orders is scanned when c changes, by customer_id; instead:",
        "   │         CREATE INDEX ON public.orders (customer_id);",
        "   └─ c: table public.customers",
        "         rows by index on id",
    ]


def test_the_index_that_explain_asks_for_makes_its_mark_go_away(conn: psycopg.Connection) -> None:
    query = "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer_id"
    before = marks(drawn(conn, query))
    statements = [m for m in before if m.startswith("CREATE INDEX")]
    assert statements == ["CREATE INDEX ON public.orders (customer_id);"]
    script(conn, statements[0])
    assert marks(drawn(conn, query)) == []


def test_an_index_finds_what_lies_between_two_values(conn: psycopg.Connection) -> None:
    query = "SELECT o.id FROM orders o WHERE total > (SELECT avg(total) FROM orders)"
    script(conn, "CREATE INDEX ON public.orders (total);")
    text = drawn(conn, query)
    assert marks(text) == []
    assert "when it moves, rows of o with total between the old and the new" in " ".join(text)


def test_a_change_of_the_padded_side_reads_its_own_key(conn: psycopg.Connection) -> None:
    found = marks(drawn(conn, "SELECT c.id, o.id AS oid FROM customers c LEFT JOIN orders o ON o.customer_id = c.id"))
    assert found[0] == "! public.orders is scanned when c or o changes, by customer_id; instead:"


DEAR = {
    "SELECT a.id, b.id AS bid FROM orders a JOIN orders b ON a.total < b.total": [
        "all of public.orders is read when b changes",
        "all of public.orders is read when a changes",
    ],
    "SELECT o.id FROM orders o WHERE total > (SELECT avg(total) FROM orders)": [
        "one value for all rows: when it moves, o is scanned for total between the old",
        "CREATE INDEX ON public.orders (total);",
    ],
    "SELECT o.id, (SELECT avg(total) FROM orders) AS a FROM orders o": ["one value for all rows: when it changes"],
    "SELECT id, row_number() OVER (ORDER BY total) AS r FROM orders": ["a window without PARTITION BY"],
    "SELECT id, status FROM orders ORDER BY status LIMIT 3": ["no index serves this ORDER BY"],
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY total) AS p FROM orders": ["one group"],
    "SELECT id FROM orders WHERE at > now() - interval '7 days'": [
        "public.orders is scanned as time passes",
        "CREATE INDEX ON public.orders (at);",
    ],
    "SELECT o.id FROM orders o JOIN customers c ON c.id = o.customer_id % 7": [
        "public.orders is scanned when c changes, by o.customer_id % 7",
        "CREATE INDEX ON public.orders ((customer_id % 7));",
    ],
    "SELECT id, rank() OVER (PARTITION BY customer_id ORDER BY total) AS r FROM orders": [],
    "SELECT id, total FROM orders ORDER BY total LIMIT 3": [],
    "SELECT DISTINCT region FROM customers": [],
    "SELECT id, tag FROM orders, unnest(tags) AS tag": [],
    "SELECT id FROM customers EXCEPT SELECT customer_id FROM orders": [],
    "SELECT c.id FROM customers c WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)": [],
}


@pytest.mark.parametrize("query", DEAR)
def test_what_costs_more_than_a_change_is_marked_and_nothing_else(conn: psycopg.Connection, query: str) -> None:
    found = marks(drawn(conn, query))
    assert len(found) == len(DEAR[query]), found
    for mark, expected in zip(found, DEAR[query], strict=True):
        assert expected in mark


def test_hidden_names_are_explained(conn: psycopg.Connection) -> None:
    text = "\n".join(drawn(conn, "SELECT o.id FROM orders o WHERE total > (SELECT avg(total) FROM orders)"))
    assert "pgt_q1 (a subquery's answers) = stage 0: one group of all rows" in text
    assert "filtered by PostgreSQL after the join: o.total > avg(orders.total)" in text
    query = "SELECT c.name, sum(o.total) AS s FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.name"
    text = "\n".join(drawn(conn, f"{query} ORDER BY s DESC LIMIT 3"))
    assert "ORDER BY sum(o.total) DESC, c.name LIMIT 3" in text
    assert "x0" not in text and "x1" not in text
    text = "\n".join(drawn(conn, "SELECT id FROM customers EXCEPT SELECT customer_id FROM orders"))
    assert "pgt_u1: the members of a set operation or of grouping sets" in text


def test_stages_that_are_read_twice_are_drawn_once(conn: psycopg.Connection) -> None:
    query = (
        "WITH s AS (SELECT customer_id, sum(total) AS v FROM orders GROUP BY customer_id) "
        "SELECT a.customer_id, b.v FROM s a JOIN s b ON a.customer_id = b.customer_id"
    )
    lines = drawn(conn, query)
    assert sum("groups by orders.customer_id" in line for line in lines) == 1
    assert sum("stage 0, shown above" in line for line in lines) == 1


def test_two_leaves_of_one_alias_get_numbers(conn: psycopg.Connection) -> None:
    query = (
        "SELECT x.id, y.id AS yid FROM (SELECT id FROM orders t) x JOIN (SELECT id FROM customers t) y ON x.id = y.id"
    )
    text = "\n".join(drawn(conn, query))
    assert "t#1: table public.orders" in text
    assert "t#2: table public.customers" in text
    assert "join on t#1.id = t#2.id" in text


def test_recursion_names_its_parts(conn: psycopg.Connection) -> None:
    query = (
        "WITH RECURSIVE r AS (SELECT id FROM emp WHERE boss IS NULL UNION "
        "SELECT e.id FROM r JOIN emp e ON e.boss = r.id) "
        "SELECT id FROM r"
    )
    text = "\n".join(drawn(conn, query))
    assert "recursion r (UNION)" in text
    assert "base = stage 0: rows" in text
    assert "e = stage 1: rows" in text


@pytest.mark.parametrize("path", sampled(topics(), every=8), ids=lambda path: path.stem)
def test_every_plan_of_the_corpus_can_be_read(path: Path, server: EmbeddedServer) -> None:
    """No line is too long, and no leaf number or travelling form is left."""
    topic = load(path)
    with without_engine(server, topic, TEMPLATE) as (db, topic):
        for case in topic.maintained:
            compiled = compile_query(db, case.query, settings={})
            if compiled.plan is None:
                assert compiled.entry is not None and compiled.detail, case.name
                continue
            lines = list(render_plan(compiled.plan, case.table))
            text = "\n".join(lines)
            assert all(len(line) <= WIDTH for line in lines if "CREATE INDEX" not in line), f"{case.name}\n{text}"
            assert not re.search(r"\bl\d+_\d+\b|\bl\d+\.\"|::int8\b.*::|CASE WHEN isfinite|\bs\.x\d", text), (
                f"{case.name}\n{text}"
            )


def test_explain_says_why_full_and_where_and_how_ties_are_decided(
    db: psycopg.Connection, stream: Stream, client: runnel.Client
) -> None:
    script(db, TABLES)
    stream("sampled", "SELECT id\nFROM orders TABLESAMPLE SYSTEM (100)", "AUTO")
    text = client.explain("sampled")
    assert "Why FULL: TABLESAMPLE cannot be maintained incrementally" in text
    assert "  LINE 2: FROM orders TABLESAMPLE SYSTEM (100)\n                      ^" in text
    assert "! Each refresh evaluates the query in PostgreSQL" in text
    stream("cheapest", "SELECT customer_id, total FROM orders ORDER BY total LIMIT 3")
    text = client.explain("cheapest")
    assert "Decided where the query leaves it open" in text
    assert "ORDER BY does not decide ties for LIMIT" in text
    assert "the first rows" in text
    assert "A refresh now would read 0 changed row(s)" in text
