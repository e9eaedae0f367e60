"""A refined query gives one result whatever the physical order of its tables, and one that the original allows.

What the original allows is stated by a witness: a query over the result, `{q}`, that has the same answer for every
legal result.
"""

from __future__ import annotations

import pytest

from runnel.sql.rewrite import determine, qualify
from tests.rewrite.conftest import Judge, fill

CASES = [
    ("SELECT s, b FROM t ORDER BY s LIMIT 5", "SELECT s FROM {q}"),
    ("SELECT b, j, 1 AS one FROM t ORDER BY b DESC NULLS LAST LIMIT 5 OFFSET 2", "SELECT b FROM {q}"),
    ("SELECT id, a FROM t LIMIT 3", "SELECT count(*) FROM {q}"),
    ("SELECT DISTINCT s, b FROM t ORDER BY s LIMIT 4", "SELECT s FROM {q}"),
    ("SELECT s, count(*) AS n FROM t GROUP BY s ORDER BY 2 LIMIT 3", "SELECT n FROM {q}"),
    ("SELECT a FROM t ORDER BY a FETCH FIRST 2 ROWS WITH TIES", "SELECT a FROM {q}"),
    ("SELECT s, b FROM t UNION ALL SELECT s, a FROM u ORDER BY 2 LIMIT 5", "SELECT b FROM {q}"),
    ("SELECT s, j FROM t UNION ALL SELECT s, NULL FROM u ORDER BY 1 LIMIT 9", "SELECT s FROM {q}"),
    ("SELECT DISTINCT ON (a) a, b, s FROM t", "SELECT a FROM {q} WHERE (a, b, s) IN (SELECT t.a, t.b, t.s FROM t)"
     " OR a IS NULL OR b IS NULL OR s IS NULL"),
    ("SELECT DISTINCT ON (a) a, s, j FROM t ORDER BY a, b DESC", "SELECT a FROM {q}"),
    ("SELECT DISTINCT ON (a) s FROM t ORDER BY a, b LIMIT 2", "SELECT count(*) FROM {q}"),
    ("SELECT a, string_agg(s, ',') AS x FROM t GROUP BY a", "SELECT a, length(x) FROM {q}"),
    ("SELECT a, string_agg(DISTINCT s, ',') AS x FROM t GROUP BY a", "SELECT a, x FROM {q}"),
    ("SELECT a, array_agg(b ORDER BY s DESC) AS x FROM t GROUP BY a",
     "SELECT a, (SELECT array_agg(e ORDER BY e) FROM unnest(x) e) FROM {q}"),
    ("SELECT json_agg(j) AS x, jsonb_agg(a) AS y, any_value(b) IS NULL AS z FROM t",
     "SELECT json_array_length(x), jsonb_array_length(y), z FROM {q}"),
    ("SELECT a, json_object_agg(b, s) FILTER (WHERE b IS NOT NULL) AS x, jsonb_object_agg(id, s) AS y FROM t "
     "GROUP BY a", "SELECT a, y, length(x::text) FROM {q}"),
    ("SELECT array_agg(q.a) AS x FROM (SELECT a FROM t WHERE a IS NOT NULL ORDER BY b, a) q", "SELECT x FROM {q}"),
    ("SELECT string_agg(q.s, ',' ) AS x FROM (SELECT s FROM t ORDER BY s) q", "SELECT x FROM {q}"),
    ("SELECT a, last_of(b) AS x, sum(b) AS y, mode() WITHIN GROUP (ORDER BY s) AS z FROM t GROUP BY a",
     "SELECT a, x, y, z FROM {q}"),
    ("SELECT a, b, row_number() OVER (PARTITION BY a ORDER BY b) AS r, rank() OVER (PARTITION BY a ORDER BY b) AS k "
     "FROM t", "SELECT * FROM {q}"),
    ("SELECT a, j, row_number() OVER (ORDER BY a) AS r FROM t", "SELECT a, r FROM {q}"),
    ("SELECT a, b, ntile(3) OVER w AS n, lag(b) OVER w AS l, dense_rank() OVER w AS d FROM t WINDOW w AS (ORDER BY a)",
     "SELECT a, n, d FROM {q}"),
    ("SELECT a, b, sum(b) OVER (w ROWS 2 PRECEDING) AS x, sum(b) OVER w AS y FROM t WINDOW w AS (ORDER BY a)",
     "SELECT a, y FROM {q}"),
    ("SELECT a, b, first_value(b) OVER (ORDER BY a) AS x FROM t", "SELECT a, b FROM {q}"),
    ("SELECT a, b, last_value(b) OVER (PARTITION BY a) AS x, array_agg(b) OVER (PARTITION BY a) AS y FROM t",
     "SELECT a, (SELECT array_agg(e ORDER BY e) FROM unnest(y) e) FROM {q}"),
    ("SELECT a, b, last_value(b) OVER (PARTITION BY s ORDER BY a) AS x FROM t", "SELECT a, b FROM {q}"),
    ("SELECT a, last_value(b) OVER (ORDER BY a) AS x, max(b) OVER (PARTITION BY a) AS y FROM t",
     "SELECT a, y, EXISTS (SELECT FROM t WHERE t.a IS NOT DISTINCT FROM x.a AND t.b IS NOT DISTINCT FROM x.x) "
     "FROM {q}"),
    ("SELECT id, ARRAY (SELECT u.c FROM u WHERE u.a = t.a ORDER BY u.s DESC) AS x FROM t",
     "SELECT id, (SELECT array_agg(e ORDER BY e) FROM unnest(x.x) e) FROM {q}"),
    ("SELECT ARRAY (SELECT c FROM u UNION ALL SELECT b FROM t) AS x", "SELECT cardinality(x.x) FROM {q}"),
    ("SELECT a, nth_value(b, 2) OVER (ORDER BY a RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS x "
     "FROM t", "SELECT a FROM {q}"),
    ("SELECT a, sum(b) AS m, row_number() OVER (ORDER BY sum(b)) AS r FROM t GROUP BY a", "SELECT m, r FROM {q}"),
    ("SELECT a, sum(b) AS m, row_number() OVER (ORDER BY sum(b)) AS r FROM t GROUP BY ROLLUP (a, s)",
     "SELECT m, r FROM {q}"),
    ("SELECT id, t.b, row_number() OVER (ORDER BY u.a) AS r FROM t FULL JOIN u USING (id)", "SELECT r FROM {q}"),
    ("SELECT id, (SELECT u.c FROM u WHERE u.a = t.a ORDER BY u.s LIMIT 1) AS x FROM t", "SELECT id FROM {q}"),
    ("SELECT t.id, f.c FROM t, LATERAL (SELECT u.c, u.s FROM u WHERE u.a = t.a ORDER BY u.s LIMIT 2) f",
     "SELECT id FROM {q}"),
    ("WITH q AS (SELECT a, s FROM t ORDER BY s LIMIT 6) SELECT a, s FROM q", "SELECT s FROM {q}"),
    ("SELECT s, unnest(arr) AS e FROM t ORDER BY s LIMIT 5", "SELECT s FROM {q}"),
    ("SELECT t AS whole, row_number() OVER () AS r FROM t", "SELECT r FROM {q}"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "witness"), CASES, ids=[c[0] for c in CASES])
def test_one_legal_result(judge: Judge, query: str, witness: str) -> None:
    text = judge.rewritten(query, qualify.rewrite, determine.rewrite)
    for seed in (3, 4):
        results = []
        for shuffle in range(4):
            fill(judge.conn, seed, shuffle)
            results.append(judge.rows(text))
            allowed = judge.rows(witness.replace("{q}", f"({query}) x", 1))
            assert judge.rows(witness.replace("{q}", f"({text}) x", 1)) == allowed, text
        assert all(r == results[0] for r in results), text


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, a FROM t ORDER BY id LIMIT 3",
        "SELECT k.x, k.y, k.z FROM k ORDER BY k.y, k.x LIMIT 3",
        "SELECT t.a, k.z FROM t JOIN k ON k.x = t.a ORDER BY t.id, k.x, k.y LIMIT 3",
        "SELECT a, b, count(*) AS n FROM t GROUP BY a, b ORDER BY b, a LIMIT 3",
        "SELECT DISTINCT ON (a) a, s FROM t ORDER BY a, id",
        "SELECT array_agg(a ORDER BY id) AS x FROM t",
        "SELECT row_number() OVER (PARTITION BY a ORDER BY id) AS r, b FROM t",
        "SELECT rank() OVER (ORDER BY a) AS r, sum(b) OVER (ORDER BY a) AS x, count(*) OVER () AS n FROM t",
        "SELECT sum(b), max(a), count(DISTINCT s) FROM t",
    ],
)
def test_what_is_total_stays(judge: Judge, query: str) -> None:
    assert judge.rewritten(query, qualify.rewrite, determine.rewrite) == judge.rewritten(query, qualify.rewrite)
    assert judge.notes == []


@pytest.mark.parametrize(
    ("query", "note"),
    [
        (
            "SELECT s, a FROM t ORDER BY s LIMIT 2",
            "ORDER BY does not decide ties for LIMIT: they are broken by the remaining columns (t.a)",
        ),
        (
            "SELECT DISTINCT ON (s) s, a FROM t",
            "ORDER BY does not decide which row DISTINCT ON keeps: ties are broken by (t.a)",
        ),
        (
            "SELECT array_agg(a) FROM t",
            "the result of array_agg(t.a) depends on the order of its input: ties are broken by its arguments",
        ),
        (
            "SELECT s, lag(a) OVER (ORDER BY s) FROM t",
            "ORDER BY does not decide ties for lag(t.a) OVER (..): they are broken by (t.a)",
        ),
        (
            "SELECT s, nth_value(a, 2) OVER (ORDER BY s) FROM t",
            "the result of nth_value(t.a, 2) OVER (..) depends on the order of ties, which its frame leaves undecided",
        ),
    ],
)
def test_a_refinement_is_noted(judge: Judge, query: str, note: str) -> None:
    judge.rewritten(query, qualify.rewrite, determine.rewrite)
    assert judge.notes == [note]
