"""The rounds of a recursive stage against PostgreSQL's own WITH RECURSIVE, under random changes, without Spark.

The stages below are evaluated by PostgreSQL from their own SQL; only the recursive stage is maintained by deltas.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import psycopg
import pytest

from runnel.apply import ddl, recursion, recursive_sql
from runnel.apply.output import apply_delta, difference_sql
from runnel.apply.scratch import Scratch
from runnel.apply.tables import StageTables, stage_tables
from runnel.catalog.owner import AsOwner
from runnel.errors import UserError
from runnel.model.names import Name
from runnel.plan.stage import RecursiveHead, Stage
from runnel.sql.compile import decide, to_core
from runnel.sql.describe import describe, qualified, scratch
from runnel.sql.parse import parse_query
from runnel.sql.stages import Compiler

TABLES = """
CREATE TABLE edges (src int, dst int, kind text);
CREATE TABLE tolls (kind text, toll numeric);
CREATE TABLE starts (n int);
INSERT INTO edges SELECT i, i + 1, 'a' FROM generate_series(0, 2) i;
INSERT INTO tolls VALUES ('a', 1), ('B', 2);
INSERT INTO starts VALUES (1), (NULL);
ANALYZE edges, tolls, starts;
"""


@dataclass
class Recursion:
    """The stages of a query up to its recursive one."""

    conn: psycopg.Connection
    query: str
    temporary: Scratch = field(default_factory=Scratch)

    def __post_init__(self) -> None:
        self.owner = AsOwner(self.conn, None)
        with scratch(self.conn, {}, None) as asking:
            described = describe(asking, self.query)
            compiler = Compiler(qualified(asking))
            tree = parse_query(described.canonical)
            assert tree is not None
            tree = to_core(decide(compiler.inline_views(tree), compiler.context), compiler.context)
            self.stages = compiler.plan(tree, described.columns, {}).stages
        self.texts = {ref.index: text for text, ref in compiler.known.items()}
        with self.conn.transaction():
            self.conn.execute("CREATE SCHEMA IF NOT EXISTS pgtrickle_state")
            self.clear()
            for stage in self.hidden():
                tables = self.tables(stage.index)
                ddl.create_state(self.conn, stage, tables, "postgres", is_last=False)
            self.build()

    def hidden(self) -> list[Stage]:
        return [s for s in self.stages if s.index in self.texts]

    def tables(self, index: int) -> StageTables:
        return stage_tables(1, self.stages[index], is_last=False, result=Name("public", "result"))

    def expected(self, stage: Stage) -> str:
        names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
        return f"SELECT {names} FROM ({self.texts[stage.index]}) AS q({names})"

    def build(self) -> None:
        for stage in self.hidden():
            tables = self.tables(stage.index)
            rows = self.expected(stage)
            if isinstance(stage.head, RecursiveHead):
                rows = recursion.build_recursion(self.owner, stage, tables, self.tables)
            self.conn.execute(f"INSERT INTO {tables.output} {rows}".encode())
            ddl.index_output(self.conn, stage, tables)
            self.compare(stage)

    def clear(self) -> None:
        """Make the temporary tables, or empty them."""
        places = [(s, self.tables(s.index)) for s in self.hidden()]
        self.temporary.prepare(self.conn, 1, places, "postgres")
        self.temporary.use(1, [s.index for s in self.hidden()])

    def refresh(self) -> None:
        """Maintain every hidden stage in the running transaction."""
        self.clear()
        for stage in self.hidden():
            tables = self.tables(stage.index)
            if isinstance(stage.head, RecursiveHead):
                recursion.merge_recursion(self.owner, stage, tables, self.tables)
            else:
                delta = difference_sql(stage, tables, self.expected(stage))
                self.conn.execute(f"INSERT INTO {tables.delta} {delta}".encode())
            apply_delta(self.owner, stage, tables)
            self.compare(stage)

    def compare(self, stage: Stage) -> None:
        difference = difference_sql(stage, self.tables(stage.index), self.expected(stage))
        assert self.conn.execute(difference.encode()).fetchall() == [], self.texts[stage.index]

    def change(self, *statements: str) -> None:
        with self.conn.transaction():
            for statement in statements:
                self.conn.execute(statement.encode())
            self.refresh()


QUERIES = {
    "pairs": "WITH RECURSIVE r AS (SELECT src, dst FROM edges UNION SELECT r.src, e.dst FROM r "
    "JOIN edges e ON e.src = r.dst) SELECT * FROM r",
    "from_starts": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT 3 UNION SELECT e.dst FROM r, edges e "
    "WHERE e.src = r.n) SELECT n FROM r",
    "null_safe": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e "
    "ON e.src IS NOT DISTINCT FROM r.n) SELECT n FROM r",
    "expressions": "WITH RECURSIVE r(n, k) AS (SELECT n, 'a'::text FROM starts UNION SELECT (e.dst + 1) % 7, "
    "lower(e.kind) FROM r JOIN edges e ON e.src = r.n AND e.kind <> r.k) SELECT n, k FROM r",
    "two_inputs": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e ON e.src = r.n "
    "JOIN tolls t USING (kind) WHERE t.toll < 3) SELECT n FROM r",
    "same_twice": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT b.dst FROM r, edges a, edges b "
    "WHERE a.src = r.n AND b.src = a.dst AND a.kind <> b.kind) SELECT n FROM r",
    "outer_preserved": "WITH RECURSIVE r(n, k) AS (SELECT n, 'a'::text FROM starts UNION SELECT coalesce(e.dst, 0), "
    "coalesce(e.kind, '?') FROM r LEFT JOIN edges e ON e.src = r.n) SELECT n, k FROM r",
    "outer_set": "WITH RECURSIVE r(n, known) AS (SELECT n, true FROM starts UNION SELECT e.dst, t.kind IS NOT NULL "
    "FROM r JOIN edges e ON e.src = r.n LEFT JOIN tolls t ON t.kind = e.kind AND t.toll < 3) SELECT n, known FROM r",
    "anti_set": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e ON e.src = r.n "
    "LEFT JOIN tolls t ON t.kind = e.kind AND t.toll = r.n WHERE t.kind IS NULL) SELECT n FROM r",
    "hops": "WITH RECURSIVE r(n, hops) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.hops + 1 FROM r "
    "JOIN edges e ON e.src = r.n WHERE r.hops < 3) SELECT n, hops FROM r",
    "paths": "WITH RECURSIVE r(path) AS (SELECT ARRAY[n] FROM starts UNION ALL SELECT r.path || e.dst FROM r "
    "JOIN edges e ON e.src = r.path[array_length(r.path, 1)] WHERE e.dst <> ALL (r.path)) SELECT path FROM r",
    "costs": "WITH RECURSIVE r(n, cost) AS (SELECT n, 1.0 FROM starts UNION ALL SELECT e.dst, r.cost + t.toll FROM r "
    "JOIN edges e ON e.src = r.n JOIN tolls t ON t.kind = e.kind AND t.toll > 0 WHERE r.cost < 4) SELECT * FROM r",
    "outer_all": "WITH RECURSIVE r(n, cost) AS (SELECT n, 0.0 FROM starts UNION ALL SELECT e.dst, r.cost + "
    "coalesce(t.toll + 1, 2) FROM r JOIN edges e ON e.src = r.n LEFT JOIN tolls t ON t.kind = e.kind "
    "AND t.toll >= r.cost WHERE r.cost < 4) SELECT n, cost FROM r",
    "same_twice_all": "WITH RECURSIVE r(n, hops) AS (SELECT n, 0 FROM starts UNION ALL SELECT b.dst, r.hops + 1 "
    "FROM r, edges a, edges b WHERE a.src = r.n AND b.src = a.dst AND r.hops < 2) SELECT n, hops FROM r",
    "exists": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e ON e.src = r.n "
    "WHERE EXISTS (SELECT FROM tolls t WHERE t.toll = r.n)) SELECT n FROM r",
    "not_exists": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT e.dst FROM r JOIN edges e ON e.src = r.n "
    "WHERE NOT EXISTS (SELECT FROM tolls t WHERE t.kind = e.kind)) SELECT n FROM r",
    "not_in": "WITH RECURSIVE r(n, hops) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.hops + 1 FROM r "
    "JOIN edges e ON e.src = r.n WHERE e.kind NOT IN (SELECT kind FROM tolls) AND r.hops < 3) SELECT n, hops FROM r",
    "functions": "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION SELECT u.x FROM r, edges e, "
    "LATERAL unnest(ARRAY[e.dst, r.n + 1]) u(x) WHERE e.src = r.n AND u.x < 7) SELECT n FROM r",
    "grouped": "WITH RECURSIVE r(n, c) AS (SELECT src, count(*) FROM edges GROUP BY src UNION SELECT x.dst, r.c + x.n "
    "FROM r JOIN (SELECT src, max(dst) AS dst, count(*) AS n FROM edges GROUP BY src) x ON x.src = r.n AND r.c < 9) "
    "SELECT n, c FROM r",
    "json": "WITH RECURSIVE r(n, j) AS (SELECT n, to_json(n) FROM starts UNION ALL SELECT e.dst, "
    "json_build_object('k', e.kind, 'j', r.j) FROM r JOIN edges e ON e.src = r.n AND length(r.j::text) < 30) "
    "SELECT n, j FROM r",
}


def _random_change(chance: random.Random) -> str:
    def node() -> str:
        return chance.choice([*"01234", "NULL"])

    def kind() -> str:
        return chance.choice(["'a'", "'B'", "'c'", "NULL"])

    def some(table: str) -> str:
        # Which rows these are is up to PostgreSQL, but the same in every run.
        return f"(SELECT ctid FROM {table} ORDER BY md5(ctid::text || {chance.random()}) LIMIT {chance.randint(1, 2)})"

    return chance.choice(
        [
            f"INSERT INTO edges VALUES ({node()}, {node()}, {kind()})",
            f"INSERT INTO edges VALUES ({node()}, {node()}, {kind()}), ({node()}, {node()}, {kind()})",
            f"DELETE FROM edges WHERE ctid IN {some('edges')}",
            f"DELETE FROM edges WHERE ctid IN {some('edges')}",
            f"UPDATE edges SET dst = {node()} WHERE ctid IN {some('edges')}",
            f"UPDATE edges SET kind = {kind()}, src = {node()} WHERE ctid IN {some('edges')}",
            f"INSERT INTO tolls VALUES ({kind()}, {chance.randint(0, 4)})",
            f"DELETE FROM tolls WHERE ctid IN {some('tolls')}",
            f"INSERT INTO starts VALUES ({node()})",
            f"DELETE FROM starts WHERE ctid IN {some('starts')}",
        ]
    )


@pytest.fixture
def conn(dsn: str) -> psycopg.Connection:
    """A session with the sources."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(TABLES.encode())
    return connection


@pytest.fixture
def rebuilds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time the query was evaluated anew."""
    seen: list[str] = []
    build = recursion.build_recursion

    def counted(*args: object) -> str:
        seen.append("built")
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(recursion, "build_recursion", counted)
    return seen


@pytest.mark.parametrize("name", QUERIES)
def test_random_changes(name: str, conn: psycopg.Connection, rebuilds: list[str]) -> None:
    chance = random.Random(name)  # noqa: S311
    with conn:
        subject = Recursion(conn, QUERIES[name])
        for _ in range(60):
            subject.change(*(_random_change(chance) for _ in range(chance.randint(1, 5))))
    assert rebuilds == ["built"], "built once, maintained from then on"


def test_only_what_a_change_touches_is_walked(conn: psycopg.Connection, rebuilds: list[str]) -> None:
    conn.execute("DELETE FROM edges")
    conn.execute("INSERT INTO edges SELECT i / 2, i, 'a' FROM generate_series(2, 5000) i")
    subject = Recursion(conn, QUERIES["from_starts"])
    for change, most in (
        ("INSERT INTO edges VALUES (5000, 5001, 'a')", 1),
        ("DELETE FROM edges WHERE dst = 1250", 8),
        ("UPDATE edges SET src = 4 WHERE dst = 2000", 2 * 4),
        ("UPDATE edges SET kind = 'z'", 0),
    ):
        with conn.transaction():
            conn.execute(change.encode())
            subject.refresh()
            stage = next(s for s in subject.stages if isinstance(s.head, RecursiveHead))
            row = conn.execute(f"SELECT count(*) FROM {recursive_sql.walk_table(subject.tables(stage.index))}".encode())
            assert 0 <= row.fetchall()[0][0] <= most, change
    assert rebuilds == ["built"]


def test_union_all_that_circles_out_of_reach_is_evaluated_anew(conn: psycopg.Connection, rebuilds: list[str]) -> None:
    conn.execute("INSERT INTO edges VALUES (3, 4, 'a')")
    subject = Recursion(
        conn,
        "WITH RECURSIVE r(n, hops) AS (SELECT n, 0 FROM starts UNION ALL SELECT e.dst, r.hops + 1 FROM r "
        "JOIN edges e ON e.src = r.n) SELECT n, hops FROM r",
    )
    subject.change("DELETE FROM edges WHERE src = 1", "INSERT INTO edges VALUES (4, 2, 'a'), (3, 2, 'a'), (4, 3, 'a')")
    assert len(rebuilds) == 2
    subject.change("DELETE FROM edges WHERE src = 4", "DELETE FROM edges WHERE (src, dst) = (3, 2)")
    subject.change("INSERT INTO edges VALUES (1, 2, 'a')")
    assert len(rebuilds) == 2


def test_an_error_on_rows_that_no_state_ever_had_is_no_error(conn: psycopg.Connection, rebuilds: list[str]) -> None:
    conn.execute("DELETE FROM edges; INSERT INTO edges VALUES (1, 2, 'a'), (2, 5, 'a')")
    subject = Recursion(
        conn,
        "WITH RECURSIVE r(n, m) AS (SELECT n, 1 FROM starts UNION ALL SELECT e.dst, 10 / (e.dst - r.n - 2) FROM r "
        "JOIN edges e ON e.src = r.n) SELECT n, m FROM r",
    )
    subject.change("DELETE FROM edges WHERE src = 1", "UPDATE edges SET dst = 4 WHERE src = 2")
    assert len(rebuilds) == 2
    with pytest.raises(psycopg.errors.DivisionByZero):
        subject.change("INSERT INTO edges VALUES (1, 2, 'a')")


def test_a_query_without_an_end_is_an_error(conn: psycopg.Connection) -> None:
    subject = Recursion(
        conn,
        "WITH RECURSIVE r(n) AS (SELECT n FROM starts UNION ALL SELECT e.dst FROM r JOIN edges e ON e.src = r.n) "
        "SELECT n FROM r",
    )
    with pytest.raises(UserError, match="has not come to an end"):
        subject.change("INSERT INTO edges VALUES (2, 1, 'a')")
