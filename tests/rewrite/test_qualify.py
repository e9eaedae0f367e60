from __future__ import annotations

import pytest
from sqlglot import exp

from runnel.sql.parse import parse_query
from runnel.sql.rewrite import qualify
from runnel.sql.rewrite import tree as tr
from tests.rewrite.conftest import Judge

QUERIES = [
    "SELECT a, count(*) FROM t GROUP BY 1 ORDER BY 1",
    "SELECT s AS a, a AS s FROM t ORDER BY s, a, id LIMIT 3",
    "SELECT a + 1 AS q FROM t GROUP BY q ORDER BY q FETCH FIRST 2 ROWS WITH TIES",
    "SELECT t.a, u.c FROM t, u WHERE t.id = u.id ORDER BY 1",
    "SELECT id, t.a, u.c FROM t FULL JOIN u USING (id)",
    "SELECT id, t.a, x.c FROM t FULL JOIN u USING (id) LEFT JOIN (SELECT id, c FROM u) x USING (id)",
    "SELECT id, (SELECT count(*) FROM k WHERE k.x = id) AS f FROM t FULL JOIN u USING (id)",
    "SELECT id, (SELECT count(*) FROM vt WHERE vt.a = u.a) AS f FROM t FULL JOIN u USING (id)",
    "SELECT q.id, q.c, q.s_t FROM (t JOIN u USING (id)) AS q (id, a, b, s_t, n, j, arr, a2, c, s_u)",
    "SELECT q.id, q.c FROM (t FULL JOIN u USING (id)) AS q, k WHERE k.x = q.c",
    "SELECT q.id, q.c, k.z FROM (t JOIN u USING (id)) AS q JOIN k ON k.x = q.id",
    "SELECT q.id, q.c, k.z FROM k LEFT JOIN (t JOIN u USING (id)) AS q ON k.x = q.id JOIN col ON col.m = k.z",
    "SELECT q.id, q.n FROM (t LEFT JOIN (SELECT a AS id, count(*) AS c FROM u GROUP BY a) g USING (id)) AS q",
    "SELECT f.a, f.b FROM ROWS FROM (generate_series(1, 3), unnest(ARRAY[1, 2])) AS f (a, b)",
    "WITH q AS (SELECT a AS id, c FROM u) SELECT j.id, j.c FROM (t JOIN q USING (id)) AS j",
    "SELECT t.a, f.v, f.o FROM t, LATERAL unnest(t.arr) WITH ORDINALITY AS f(v, o)",
    "SELECT t.a, f.c FROM t, LATERAL (SELECT u.c FROM u WHERE u.id = t.id) f",
    "SELECT a FROM t UNION VALUES (1), (7) ORDER BY 1",
    "SELECT 1 AS one FROM t ORDER BY count(*)",
    "SELECT a FROM t ORDER BY sum(b) OVER (PARTITION BY a)",
    "SELECT sum(b) OVER w AS x, row_number() OVER (w ROWS 1 PRECEDING) AS y FROM t WINDOW w AS (ORDER BY id)",
    "SELECT v.a, v.s FROM vt v WHERE EXISTS (SELECT 1 FROM vt x WHERE x.id = v.id + 1)",
    "SELECT t.a FROM t WHERE EXISTS (SELECT 1 FROM vt WHERE vt.id = t.id) AND t.a IN (SELECT vg.a FROM vg)",
    "WITH q AS (SELECT a, s FROM t ORDER BY a) SELECT * FROM q WHERE s IS NOT NULL",
    "SELECT x.a FROM (SELECT a, b FROM t ORDER BY b) x",
    'SELECT s COLLATE "C" AS s, (s IS NORMALIZED) AS n FROM t ORDER BY s COLLATE "C", id LIMIT 4',
    "SELECT g FROM generate_series(1, 3) g",
    "SELECT t AS whole FROM t",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_meaning_stays(judge: Judge, query: str) -> None:
    judge.equal(query, qualify.rewrite)


@pytest.mark.parametrize("query", QUERIES)
def test_every_column_names_its_table(judge: Judge, query: str) -> None:
    tree = parse_query(judge.rewritten(query, qualify.rewrite))
    assert tree is not None
    merged: set[str] = set()
    for select in tree.find_all(exp.Select):
        merged |= tr.merged_columns(select)
        for item in tr.leaf_items(select):
            assert item.alias, tr.text(item)
        for join in tr.joins_of(select):
            assert join.kind or join.side or join.args.get("on") or join.args.get("using")
    loose = {c.name for c in tree.find_all(exp.Column) if not c.table}
    assert loose <= merged | {"NORMALIZED"}


@pytest.mark.parametrize("query", ["SELECT a FROM t ORDER BY a", "SELECT q.a FROM (SELECT a FROM t ORDER BY b) q"])
def test_an_order_that_nobody_sees_is_dropped(judge: Judge, query: str) -> None:
    assert "ORDER BY" not in judge.rewritten(query, qualify.rewrite)


def test_an_alias_inside_a_view_is_renamed_when_it_repeats_an_outer_one(judge: Judge) -> None:
    text = judge.rewritten("SELECT t.a FROM t JOIN vt v ON v.id = t.id", qualify.rewrite)
    assert 'FROM "public"."t" AS "pgt_v1"' in text
