"""The steps one after the other, over queries in which several constructs meet."""

from __future__ import annotations

import pytest

from runnel.sql.rewrite import determine, grouping_sets, qualify, set_operations, table_functions
from tests.rewrite.conftest import Judge

CHAIN = (qualify.rewrite, determine.rewrite, table_functions.rewrite, grouping_sets.rewrite, set_operations.rewrite)

QUERIES = [
    "SELECT last_of(a) AS x, generate_series(1, 2) AS g FROM t",
    "SELECT 1 AS one FROM t ORDER BY last_of(a)",
    "SELECT id, ARRAY (SELECT unnest(t.arr) ORDER BY 1 DESC) AS l FROM t",
    "SELECT a FROM t WHERE (a, b) IN (SELECT u.a, u.c FROM u INTERSECT SELECT k.x, k.y FROM k)",
    "SELECT row_number() OVER (w ROWS UNBOUNDED PRECEDING) AS r, sum(count(*)) OVER w AS x FROM t GROUP BY ROLLUP (id) "
    "WINDOW w AS (ORDER BY id, grouping(id))",
    "SELECT a, count(*) AS n FROM t GROUP BY ROLLUP (a) EXCEPT SELECT a, count(*) FROM u GROUP BY CUBE (a)",
    "SELECT unnest(arr) AS x FROM t INTERSECT ALL SELECT a FROM u",
    "SELECT a, b, generate_series(1, count(*)) AS g FROM t GROUP BY CUBE (a, b)",
    "SELECT unnest(arr) AS x, count(*) AS n FROM t GROUP BY ROLLUP (1)",
    "SELECT a, s, sum(b) AS x, row_number() OVER (ORDER BY sum(b), a, s, grouping(a, s)) AS r FROM t "
    "GROUP BY CUBE (a, s) ORDER BY r LIMIT 6",
    "SELECT q.a, array_agg(q.x ORDER BY q.x) AS l FROM (SELECT a, unnest(arr) AS x FROM t) q GROUP BY ROLLUP (q.a)",
    "WITH q AS (SELECT a FROM t EXCEPT ALL SELECT x FROM k) SELECT a, count(*) AS n FROM q GROUP BY ROLLUP (a)",
    "SELECT v.a, vg.n FROM vt v JOIN vg ON vg.a = v.a INTERSECT SELECT a, c FROM u",
    "SELECT id FROM t WHERE a IN (SELECT unnest(t.arr) EXCEPT SELECT u.a FROM u WHERE u.id = t.id)",
    "SELECT id, t.a, array_agg(u.c ORDER BY u.c) AS x FROM t FULL JOIN u USING (id) GROUP BY CUBE (id, t.a)",
    "(SELECT a, b FROM t ORDER BY a, b LIMIT 4) EXCEPT ALL (SELECT a, c FROM u ORDER BY a, c LIMIT 2)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT r.n + 1 FROM r WHERE r.n < 4) "
    "SELECT n FROM r EXCEPT SELECT a FROM t",
    "WITH RECURSIVE r(n, p) AS (SELECT id, a FROM t WHERE id < 3 UNION ALL SELECT t.id, t.a FROM t, r "
    "WHERE t.id = r.n + 3) SELECT p, count(*) AS c FROM r GROUP BY ROLLUP (p)",
    "SELECT DISTINCT ON (a) a, unnest(arr) AS x FROM t ORDER BY a, x DESC",
    "SELECT a, percentile_cont(0.5) WITHIN GROUP (ORDER BY b) AS m FROM t GROUP BY ROLLUP (a) HAVING count(*) > 1",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_meaning_stays(judge: Judge, query: str) -> None:
    judge.equal(query, *CHAIN)
