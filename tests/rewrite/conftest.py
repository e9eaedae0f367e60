"""A small database with NULLs and duplicates, and a judge that runs a query before and after its rewrite."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlglot import exp

from runnel.model.types import Column
from runnel.plan.expr import pg
from runnel.server.embedded import EmbeddedServer
from runnel.sql.describe import describe, scratch
from runnel.sql.parse import parse_query
from runnel.sql.rewrite.context import Context

Step = Callable[[exp.Query, Context], exp.Query]
DATABASE = "rewrites"
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b int, s text, n numeric, j json, arr int[]);
CREATE TABLE u (id int, a int, c bigint, s varchar(5));
CREATE TABLE k (x int NOT NULL, y int NOT NULL, z int, UNIQUE (x, y));
CREATE TABLE col (s text COLLATE "C", m int);
CREATE VIEW vt AS SELECT id, a, s FROM t WHERE a IS NOT NULL;
CREATE VIEW vg AS SELECT a, count(*) AS n FROM t GROUP BY a ORDER BY a;
CREATE TYPE pair AS (l int, r int);
CREATE FUNCTION pairs(int) RETURNS SETOF pair LANGUAGE sql IMMUTABLE AS $$
    SELECT ROW (g, g * 2)::pair FROM generate_series(1, $1) AS g $$;
CREATE AGGREGATE last_of (int) (sfunc = int4larger, stype = int);
"""

_KEYS = """
SELECT array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
WHERE i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL AND n.nspname = %s AND c.relname = %s
GROUP BY i.indexrelid HAVING bool_and(a.attnotnull)
"""


def context(conn: psycopg.Connection) -> Context:
    """A context that asks PostgreSQL."""

    def columns(text: str) -> tuple[Column, ...]:
        with scratch(conn, {}, None) as asking:
            return describe(asking, text).columns

    def has(flag: str) -> Callable[[str], bool]:
        def ask(name: str) -> bool:
            row = conn.execute(f"SELECT bool_or({flag}) FROM pg_proc WHERE proname = %s".encode(), (name,)).fetchone()
            return bool(row and row[0])

        return ask

    return Context(
        describe=columns,
        unique_keys=lambda schema, table: [tuple(k) for (k,) in conn.execute(_KEYS, (schema, table))],
        is_set_returning=has("proretset"),
        is_aggregate=has("prokind = 'a'"),
    )


def _rows(random_: random.Random) -> list[tuple[str, list[tuple[object, ...]]]]:
    def maybe(value: object) -> object:
        return None if random_.random() < 0.2 else value

    def small() -> object:
        return maybe(random_.randint(0, 3))

    def word() -> object:
        return maybe(random_.choice(["a", "b", "B", "a,c", ""]))

    def array() -> object:
        return maybe([small() for _ in range(random_.randint(0, 3))])

    t = [
        (i, small(), small(), word(), small(), maybe(random_.choice(['{"p": 1, "q": 2}', "{}", '{"r": 3}'])), array())
        for i in range(24)
    ]
    u = [(small(), small(), small(), word()) for _ in range(14)]
    k = [(i // 3, i % 3, small()) for i in range(9)]
    col = [(word(), small()) for _ in range(8)]
    return [("t", t), ("u", u), ("k", k), ("col", col)]


def fill(conn: psycopg.Connection, seed: int, shuffle: int | None = None) -> None:
    """Give the tables random rows; `shuffle` changes their physical order and nothing else."""
    for table, rows in _rows(random.Random(seed)):
        conn.execute(f"DELETE FROM {table}".encode())
        if shuffle is not None:
            random.Random(shuffle).shuffle(rows)
        places = ", ".join(["%s"] * len(rows[0]))
        conn.cursor().executemany(f"INSERT INTO {table} VALUES ({places})".encode(), rows)


@pytest.fixture(scope="session")
def tables(server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """A connection to a database with the tables, empty."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {DATABASE}")
    with psycopg.connect(make_conninfo(server.dsn, dbname=DATABASE), autocommit=True) as conn:
        conn.execute(TABLES)
        yield conn
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)")


@dataclass
class Judge:
    """Rewrites queries and compares their results."""

    conn: psycopg.Connection
    notes: list[str] = field(default_factory=list)

    def tree(self, query: str) -> exp.Query:
        """A query as the compiler sees it: printed by PostgreSQL, with views inlined."""
        with scratch(self.conn, {}, None) as asking:
            tree = parse_query(describe(asking, query).canonical)
        assert tree is not None, query
        for table in list(tree.find_all(exp.Table)):
            row = self.conn.execute(
                "SELECT pg_get_viewdef(c.oid) FROM pg_class c WHERE c.relkind = 'v' AND c.relname = %s", (table.name,)
            ).fetchone()
            if row is not None and table.db:
                body = parse_query(row[0].strip().rstrip(";").replace("FROM ", "FROM public."))
                alias = exp.TableAlias(this=exp.to_identifier(table.alias_or_name))
                table.replace(exp.Subquery(this=body, alias=alias, joins=table.args.get("joins")))
        return tree

    def rewritten(self, query: str, *steps: Step) -> str:
        """The text after some rewrites."""
        ctx = context(self.conn)
        tree = self.tree(query)
        for step in steps:
            tree = step(tree, ctx)
        self.notes = ctx.notes
        return pg(tree)

    def rows(self, query: str) -> list[str]:
        """The result as a sorted list of texts."""
        return sorted(str(r[0]) for r in self.conn.execute(f"SELECT pgt_q::text FROM ({query}) pgt_q".encode()))

    def equal(self, query: str, *steps: Step) -> str:
        """Assert that a query and its rewrite have the same columns and rows; gives the rewritten text."""
        text = self.rewritten(query, *steps)
        with scratch(self.conn, {}, None) as asking:
            before = [(c.name, c.type, c.collation) for c in describe(asking, query).columns]
        with scratch(self.conn, {}, None) as asking:
            after = [(c.name, c.type, c.collation) for c in describe(asking, text).columns]
        assert before == after, text
        for seed in (1, 2):
            fill(self.conn, seed)
            missing, extra = self._difference(query, text), self._difference(text, query)
            assert not missing, f"missing {missing}\n{text}"
            assert not extra, f"unexpected {extra}\n{text}"
        for table in ("t", "u", "k", "col"):
            self.conn.execute(f"DELETE FROM {table}".encode())
        assert self.rows(query) == self.rows(text), f"over empty tables\n{text}"
        return text

    def _difference(self, left: str, right: str) -> list[tuple[object, ...]]:
        try:
            return self.conn.execute(
                f"SELECT * FROM ({left}) l EXCEPT ALL SELECT * FROM ({right}) r".encode()
            ).fetchall()
        except psycopg.errors.UndefinedFunction:  # a column without equality, such as json
            query = f"SELECT pgt_l::text FROM ({left}) pgt_l EXCEPT ALL SELECT pgt_r::text FROM ({right}) pgt_r"
            return self.conn.execute(query.encode()).fetchall()


@pytest.fixture
def judge(tables: psycopg.Connection) -> Judge:
    return Judge(tables)
