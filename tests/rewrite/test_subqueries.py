# ruff: noqa: E501 - a query reads best on one line
"""Every query runs next to its rewrite, over random rows with NULLs and duplicates and over empty tables."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlglot import exp

from runnel.plan.expr import pg
from runnel.server.embedded import EmbeddedServer
from runnel.sql.describe import describe, scratch
from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import qualify, subqueries
from runnel.sql.rewrite import tree as tr
from tests.rewrite.conftest import context
from tests.sampling import sampled

DATABASE = "rewrites_subqueries"
TABLES = """
CREATE TABLE o (id int PRIMARY KEY, a int, b int, s text, f boolean);
CREATE TABLE i (id int PRIMARY KEY, k int, v int, w numeric, s text, f boolean);
CREATE TABLE j (k int, v int, arr int[]);
CREATE TABLE e (k int, v int);
CREATE SCHEMA IF NOT EXISTS pgtrickle;
CREATE FUNCTION pgtrickle._single(n bigint, v anyelement) RETURNS anyelement LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF n > 1 THEN
        RAISE EXCEPTION 'more than one row returned by a subquery used as an expression' USING ERRCODE = '21000';
    END IF;
    RETURN v;
END $$;
"""

EXISTS = [
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT * FROM i WHERE i.k = o.a AND i.v = o.b AND i.f)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT * FROM i WHERE i.k = o.a)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT * FROM e WHERE e.k = o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT * FROM i WHERE i.f) AND o.a > 0",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT * FROM e)",
    "SELECT o.id, EXISTS (SELECT * FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, CASE WHEN EXISTS (SELECT * FROM i WHERE i.k = o.a) THEN 1 WHEN o.f THEN 2 END AS x FROM o",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a) OR EXISTS (SELECT 1 FROM j WHERE j.k = o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND o.f)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND o.f)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE o.f)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k < o.a)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND o.b <> i.v AND i.f AND o.f)",
    "SELECT o.id, EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b AND o.f) AS x FROM o",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k IS NOT DISTINCT FROM o.a AND i.v <> o.b)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k IS NOT DISTINCT FROM o.a AND i.v <> o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.id <> o.id) AND NOT EXISTS (SELECT 1 FROM i x WHERE x.k = o.a AND x.id <> o.id AND x.f)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b) AND NOT EXISTS (SELECT 1 FROM i x WHERE x.k = o.a AND x.id <> o.b AND x.f)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b AND i.f) AND EXISTS (SELECT 1 FROM i x WHERE x.k = o.a AND x.v <> o.b)",
    "SELECT o.id, x.id AS y FROM o LEFT JOIN i x ON x.k = o.a AND EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b) WHERE NOT EXISTS (SELECT 1 FROM i y WHERE y.k = o.a AND y.v <> x.v)",
    "SELECT o.id, x.id AS y FROM o LEFT JOIN i x ON x.k = o.a WHERE EXISTS (SELECT 1 FROM i y WHERE y.k = x.v AND y.v <> x.k) OR o.f",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.w <> o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.s <> o.s)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a OR i.v = o.b)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k IS NOT DISTINCT FROM o.a)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k IS DISTINCT FROM o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k + o.a = o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE coalesce(i.k, 1) = coalesce(o.a, 2) + 1)",
    "SELECT * FROM o WHERE EXISTS (SELECT count(*) FROM i WHERE i.k = o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a HAVING count(*) > 1)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a HAVING count(*) = 0)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a GROUP BY i.v HAVING count(*) > 1)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a GROUP BY i.v HAVING count(*) > o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a GROUP BY i.v)",
    "SELECT * FROM o WHERE EXISTS (SELECT DISTINCT i.v FROM i WHERE i.k = o.a ORDER BY i.v LIMIT 3)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a ORDER BY i.id OFFSET 1)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a UNION ALL SELECT j.v FROM j WHERE j.k = o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT i.v FROM i WHERE i.k = o.a UNION SELECT j.v FROM j WHERE j.k = o.b)",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT i.v FROM i WHERE i.k > o.a UNION SELECT j.v FROM j WHERE j.k = o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i JOIN j ON j.k = i.k AND j.v = o.b WHERE i.k = o.a)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i LEFT JOIN j ON j.k = i.k WHERE i.k = o.a AND j.v IS NULL)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i LEFT JOIN j ON j.k = i.k AND j.v = o.b WHERE j.v IS NULL)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i FULL JOIN j ON j.k = i.k WHERE i.v = o.a AND j.v < o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 WHERE o.a > 1)",
    "SELECT o.id, EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v)) AS x FROM o",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v"
    " AND j.v = o.b))",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM i WHERE EXISTS (SELECT 1 FROM j WHERE j.k = o.a AND j.v < o.b))",
    "SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE NOT EXISTS (SELECT 1 FROM j WHERE j.k = o.a AND j.v = i.v))",
    "SELECT o.id, p.id AS p FROM o LEFT JOIN i p ON p.k = o.a WHERE NOT EXISTS (SELECT 1 FROM j WHERE j.k < p.v)",
    "SELECT o.id, p.id AS p FROM o LEFT JOIN i p ON p.k = o.a WHERE EXISTS (SELECT 1 FROM j WHERE j.k IS DISTINCT FROM"
    " p.v)",
    "SELECT o.id, p.id AS p FROM o FULL JOIN i p ON p.k = o.a WHERE EXISTS (SELECT 1 FROM j WHERE j.k <= p.v + o.b)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM (SELECT i.k, count(*) AS n FROM i WHERE i.v = o.b GROUP BY i.k) d"
    " WHERE d.n > 1)",
    "SELECT * FROM o WHERE EXISTS (SELECT 1 FROM (SELECT max(i.k) AS m FROM i WHERE i.v = o.b) d WHERE d.m IS NULL)",
    "SELECT * FROM o WHERE EXISTS (WITH c AS (SELECT i.v FROM i WHERE i.k = o.a) SELECT 1 FROM c WHERE c.v > 1)",
    "SELECT id FROM o FULL JOIN (SELECT k AS id, v FROM j) p USING (id) WHERE EXISTS (SELECT 1 FROM i WHERE i.k = id)",
    "SELECT id FROM o FULL JOIN (SELECT k AS id, v FROM j) p USING (id) WHERE EXISTS (SELECT 1 FROM i WHERE i.k < o.id"
    " OR i.k > p.v)",
]

MEMBERSHIP = [
    "SELECT * FROM o WHERE o.a IN (SELECT i.k FROM i)",
    "SELECT * FROM o WHERE o.a NOT IN (SELECT i.k FROM i)",
    "SELECT * FROM o WHERE o.a NOT IN (SELECT i.k FROM i WHERE i.k IS NOT NULL)",
    "SELECT * FROM o WHERE o.a NOT IN (SELECT e.k FROM e)",
    "SELECT o.id, o.a IN (SELECT i.k FROM i) AS x, o.a NOT IN (SELECT e.k FROM e) AS y FROM o",
    "SELECT o.id, o.a IN (SELECT i.k FROM i WHERE i.v = o.b) AS x FROM o",
    "SELECT o.id, (o.a IN (SELECT i.k FROM i WHERE i.v = o.b)) IS NULL AS x FROM o",
    "SELECT o.id, o.a IN (SELECT i.k FROM i WHERE i.v < o.b) AS x FROM o",
    "SELECT o.id, o.a IN (SELECT i.k FROM i WHERE i.v = o.b AND o.f) AS x FROM o",
    "SELECT o.id, o.id IN (SELECT i.id FROM i) AS x FROM o",
    "SELECT * FROM o WHERE o.id NOT IN (SELECT i.id FROM i WHERE i.k = o.a)",
    "SELECT o.id, o.a IN (SELECT i.k + o.b FROM i) AS x FROM o",
    "SELECT * FROM o WHERE o.a IN (SELECT i.k + o.b FROM i)",
    "SELECT * FROM o WHERE o.a IN (SELECT i.k FROM i) OR o.b IN (SELECT j.v FROM j)",
    "SELECT * FROM o WHERE (o.a, o.b) IN (SELECT i.k, i.v FROM i)",
    "SELECT * FROM o WHERE (o.a, o.b) NOT IN (SELECT i.k, i.v FROM i)",
    "SELECT o.id, (o.a, o.b) IN (SELECT i.k, i.v FROM i) AS x FROM o",
    "SELECT o.id, (o.a, o.b) IN (SELECT i.k, i.v FROM i WHERE i.id = o.id) AS x FROM o",
    "SELECT * FROM o WHERE o.a IN (VALUES (1), (2), (NULL))",
    "SELECT o.id, o.a NOT IN (VALUES (1), (2), (NULL)) AS x FROM o",
    "SELECT o.id, o.a IN (VALUES (o.b), (2)) AS x FROM o",
    "SELECT * FROM o WHERE o.a IN (SELECT max(i.k) FROM i)",
    "SELECT o.id, o.a IN (SELECT max(i.k) FROM i WHERE i.v = o.b) AS x FROM o",
    "SELECT o.id, o.a IN (SELECT max(i.k) FROM i WHERE i.v = o.b HAVING count(*) > 1) AS x FROM o",
    "SELECT o.id, o.a IN (SELECT i.k FROM i GROUP BY i.k HAVING count(*) > 1) AS x FROM o",
    "SELECT * FROM o WHERE o.a IN (SELECT i.k FROM i WHERE i.v = o.b GROUP BY i.k HAVING count(*) > 0)",
    "SELECT * FROM o WHERE o.a IN (SELECT DISTINCT i.k FROM i WHERE i.v = o.b)",
    "SELECT * FROM o WHERE o.a IN (SELECT i.k FROM i ORDER BY i.id LIMIT 5)",
    "SELECT * FROM o WHERE o.a IN (SELECT i.v FROM i WHERE i.k = o.b ORDER BY i.id LIMIT 2)",
    "SELECT * FROM o WHERE o.a IN (SELECT i.k FROM i UNION SELECT j.k FROM j)",
    "SELECT o.id, o.a IN (SELECT i.k FROM i WHERE i.v = o.b UNION ALL SELECT j.k FROM j WHERE j.v = o.b) AS x FROM o",
    "SELECT o.id, o.a IN (SELECT i.k FROM i WHERE i.v = o.b EXCEPT SELECT j.k FROM j WHERE j.v = o.a) AS x FROM o",
    "SELECT o.id, 1 IN (SELECT i.k FROM i WHERE i.v = o.b) AS x, 1 IN (SELECT i.k FROM i) AS y FROM o",
    "SELECT * FROM o WHERE 1 IN (SELECT i.k FROM i)",
    "SELECT 1 IN (SELECT i.k FROM i) AS x, EXISTS (SELECT 1 FROM e) AS y, (SELECT max(k) FROM j) AS z",
    "SELECT * FROM o WHERE (SELECT max(k) FROM i) IN (SELECT j.k FROM j)",
    "SELECT o.id, o.a = ANY (SELECT i.k FROM i) AS x, o.a <> ALL (SELECT i.k FROM i WHERE i.v = o.b) AS y FROM o",
    "SELECT * FROM o WHERE o.id IN (SELECT i.id FROM i WHERE i.k IN (SELECT j.k FROM j WHERE j.v = o.a))",
] + [
    f"SELECT o.id, o.a {op} {q} (SELECT i.k FROM i{where}) AS x FROM o"
    for op in ("<", "<=", ">", ">=", "=", "<>")
    for q in ("ANY", "ALL")
    for where in ("", " WHERE i.v = o.b", " WHERE i.v > o.b")
] + [
    f"SELECT o.id, o.{x} {op} {q} (SELECT i.{x} FROM i WHERE i.k = o.a) AS x FROM o"
    for x in ("s", "f")
    for op in ("<", "=", "<>")
    for q in ("ANY", "ALL")
] + ["SELECT o.id, o.a > ALL (SELECT max(i.k) FROM i WHERE i.v = o.b) AS x FROM o"]  # fmt: skip

SCALAR = [
    "SELECT o.id, (SELECT max(i.v) FROM i) AS x FROM o",
    "SELECT o.id, (SELECT max(i.v) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT count(*) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT count(*) + 1 + coalesce(sum(i.v), 100) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT coalesce(max(i.v), o.b) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT sum(i.v * o.b) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT sum(i.v) FROM i WHERE i.k < o.a) AS x, (SELECT count(*) FROM i WHERE i.k < o.a) AS y FROM o",
    "SELECT o.id, (SELECT count(*) FROM i WHERE i.k IS DISTINCT FROM o.a) AS y FROM o",
    "SELECT o.id, (SELECT count(*) FROM i WHERE i.k = o.id) AS y FROM o WHERE o.a = 1 AND o.b < 3",
    "SELECT o.id, (SELECT sum(i.v + j.v) FROM i JOIN j ON j.k = i.v WHERE i.k = o.id AND i.v = o.a) AS y FROM o WHERE o.b = 1",
    "SELECT o.id, x.v, (SELECT avg(i.v) FROM i LEFT JOIN j ON j.k = i.v WHERE i.k = o.id) AS y FROM o JOIN i x ON x.k = o.id WHERE o.s = 'a'",
    "SELECT o.id FROM o LEFT JOIN i x ON x.k = o.a WHERE x.s = 'a' AND x.v < (SELECT avg(i.v) FROM i WHERE i.k = x.id)",
    "SELECT o.id, x.id AS z FROM o LEFT JOIN i x ON x.k = o.a AND o.a < (SELECT max(i.v) FROM i WHERE i.k = o.id) WHERE o.b = 1",
    "SELECT x.id, (SELECT count(*) FROM i FULL JOIN j ON j.k = i.k WHERE i.v = x.id) AS y FROM o x WHERE x.a = 2 OR x.a = 1",
    "SELECT o.b, sum(o.a) AS s, count((SELECT max(i.v) FROM i WHERE i.k = o.id)) AS n FROM o WHERE o.f = true AND o.a = 1 GROUP BY o.b",
    "SELECT o.id, (SELECT count(*) FROM i WHERE o.f) AS y FROM o",
    "SELECT o.id, (SELECT count(*) FROM i WHERE o.f AND i.k = o.a) AS y FROM o",
    "SELECT o.id, (SELECT max(i.v) FROM i WHERE i.k = o.a HAVING count(*) > 1) AS x FROM o",
    "SELECT o.id, (SELECT 7 FROM i WHERE i.k = o.a HAVING count(*) = 0) AS x FROM o",
    "SELECT o.id, (SELECT max(i.v) FROM i WHERE i.k = o.a GROUP BY i.k) AS x FROM o",
    "SELECT o.id, (SELECT i.v FROM i WHERE i.id = o.a) AS x FROM o",
    "SELECT o.id, (SELECT i.v + o.b FROM i WHERE i.id = o.a) AS x FROM o",
    "SELECT o.id, (SELECT i.v FROM i WHERE i.id = 3) AS x FROM o",
    "SELECT o.id, (SELECT i.v FROM i WHERE i.id = o.a AND o.f) AS x FROM o",
    "SELECT o.id, (SELECT i.s FROM i WHERE i.k = o.a ORDER BY i.v, i.id LIMIT 1) AS x FROM o",
    "SELECT o.id, (SELECT i.s FROM i WHERE i.k = o.a ORDER BY i.v DESC NULLS LAST, i.id LIMIT 1 OFFSET 1) AS x FROM o",
    "SELECT o.id, (SELECT i.s FROM i WHERE i.k > o.a ORDER BY i.v, i.id LIMIT 1) AS x FROM o",
    "SELECT o.id, (SELECT i.s FROM i ORDER BY i.v, i.id LIMIT 1) AS x, (SELECT e.v FROM e ORDER BY e.v LIMIT 1) AS y"
    " FROM o",
    "SELECT o.id, (SELECT i.v FROM i WHERE i.k = o.a GROUP BY i.v ORDER BY count(*) DESC, i.v LIMIT 1) AS x FROM o",
    "SELECT o.id, (SELECT DISTINCT i.v FROM i WHERE i.k = o.a ORDER BY i.v LIMIT 1) AS x FROM o",
    "SELECT o.id, (SELECT e.v FROM e) AS x, (SELECT e.v FROM e WHERE e.k = o.a) AS y FROM o",
    "SELECT o.id, (SELECT DISTINCT i.k FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT o.a + 1) AS x, (SELECT o.b WHERE o.f) AS y FROM o",
    "SELECT o.id, ARRAY(SELECT i.id FROM i WHERE i.k = o.a ORDER BY i.id) AS x FROM o",
    "SELECT o.id, ARRAY(SELECT i.id FROM i WHERE i.k = o.a ORDER BY i.v, i.id LIMIT 2) AS x FROM o",
    "SELECT o.id, ARRAY(SELECT DISTINCT i.v FROM i WHERE i.k > o.a ORDER BY i.v) AS x FROM o",
    "SELECT o.id, ARRAY(SELECT i.id FROM i ORDER BY i.id DESC) AS x, ARRAY(SELECT e.v FROM e) AS y FROM o",
    "SELECT * FROM o WHERE o.a > (SELECT avg(i.v) FROM i WHERE i.k = o.a)",
    "SELECT * FROM o WHERE o.a < 0.5 * (SELECT sum(i.v) FROM i) OR o.b = (SELECT count(*) FROM e)",
    "SELECT sum((SELECT max(i.v) FROM i WHERE i.k = o.a)) AS x, o.b FROM o GROUP BY o.b",
    "SELECT (SELECT max(i.v) FROM i WHERE i.k = o.a) AS x, count(*) AS n FROM o GROUP BY 1",
    "SELECT o.a, count(*) AS n FROM o GROUP BY o.a HAVING count(*) > (SELECT min(i.v) FROM i WHERE i.k = o.a)",
    "SELECT o.a, (SELECT max(i.v) FROM i WHERE i.k = o.a) AS m FROM o GROUP BY o.a",
    "SELECT o.a, (SELECT max(i.v) FROM i WHERE i.k = sum(o.b)) AS m FROM o GROUP BY o.a",
    "SELECT (SELECT sum(o.b) FROM e) AS m, (SELECT sum(o.b + e.k) FROM e) AS n FROM o WHERE o.b > 5 GROUP BY o.b",
    "SELECT o.a + 1 AS q, sum(o.b) AS n FROM o GROUP BY o.a + 1 HAVING EXISTS (SELECT 1 FROM i WHERE i.k = sum(o.b))"
    " AND sum(o.b) > 0",
    "SELECT sum(o.b) - (SELECT count(*) FROM i) AS x FROM o",
    "SELECT o.a, rank() OVER w AS r, (SELECT max(k) FROM i) AS m FROM o GROUP BY o.a WINDOW w AS (ORDER BY count(*), sum(o.b))",
    "SELECT o.id, ARRAY[(SELECT max(i.v) FROM i WHERE i.k = o.a), o.b] AS x FROM o",
    "SELECT o.id, row_number() OVER (ORDER BY o.a, o.id) AS n, (SELECT count(*) FROM i WHERE i.k = o.a) AS x FROM o",
    "WITH RECURSIVE r AS (SELECT o.id, o.a FROM o UNION SELECT r.id, r.a + 1 FROM r WHERE r.a < 3) SELECT r.id, (SELECT count(*) FROM i WHERE i.k = r.a) AS n FROM r",
    "SELECT sum(o.b) AS x FROM o HAVING sum(o.b) > (SELECT min(k) FROM i)",
    "SELECT 1 AS x FROM o HAVING EXISTS (SELECT 1 FROM i)",
    "SELECT o.id, o.s, count(*) AS n FROM o JOIN j ON j.k = o.a GROUP BY o.id HAVING count(*) >= (SELECT min(k) FROM i)",
    "SELECT o.a, rank() OVER (ORDER BY sum(o.b)) AS r, (SELECT count(*) FROM i WHERE i.k = o.a) AS n FROM o GROUP BY o.a",
    "SELECT o.id, sum(o.b) OVER (PARTITION BY (SELECT max(i.v) FROM i WHERE i.k = o.a)) AS x FROM o",
    "SELECT DISTINCT (SELECT max(i.v) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT DISTINCT ON ((SELECT max(i.v) FROM i WHERE i.k = o.a)) (SELECT max(i.v) FROM i WHERE i.k = o.a) AS x, o.id"
    " FROM o ORDER BY (SELECT max(i.v) FROM i WHERE i.k = o.a), o.id",
    "SELECT o.id FROM o ORDER BY (SELECT max(i.v) FROM i WHERE i.k = o.a), o.id LIMIT 3",
    "SELECT o.id, (SELECT (SELECT max(j.v) FROM j WHERE j.k = max(i.v)) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT max(i.v) FROM i WHERE i.k = o.a AND i.v > (SELECT avg(j.v) FROM j WHERE j.k = o.b)) AS x FROM o",
    "SELECT o.id, (SELECT count(*) FROM (SELECT i.v FROM i WHERE i.k = o.a UNION SELECT j.v FROM j WHERE j.k = o.a) d)"
    " AS x FROM o",
    "SELECT o.id, (SELECT sum(d.c) FROM (SELECT count(*) AS c FROM i WHERE i.k = o.a UNION ALL SELECT count(*) FROM j"
    " WHERE j.k = o.b) d) AS x FROM o",
    "SELECT o.id, (SELECT sum(d.r * d.v) FROM (SELECT i.v, row_number() OVER (ORDER BY i.id) AS r FROM i WHERE i.k = o.a)"
    " d) AS x FROM o",
    "SELECT o.id, (SELECT sum(d.r * d.v) FROM (SELECT i.v, row_number() OVER w AS r FROM i WHERE i.k > o.a"
    " WINDOW w AS (ORDER BY i.id)) d) AS x FROM o",
    "SELECT o.id, (SELECT count(*) FROM i LEFT JOIN (SELECT j.k FROM j WHERE j.v = o.b) d ON d.k = i.k) AS x FROM o",
    "SELECT o.id, coalesce((SELECT string_agg(i.s, ',' ORDER BY i.id) FROM i WHERE i.k = o.a), 'none') AS x FROM o",
    "SELECT o.id, (SELECT count(*) FILTER (WHERE i.v > o.b) FROM i WHERE i.k = o.a) AS x FROM o",
    "SELECT o.id, (SELECT max(i.v) FROM i, j WHERE i.k = j.k AND j.v = o.a) AS x FROM o",
    "SELECT o.id, p.x FROM o, (SELECT i.k, (SELECT count(*) FROM j WHERE j.k = i.v) AS x FROM i) p WHERE p.k = o.a",
    "WITH c AS (SELECT o.id, o.a FROM o WHERE o.a IN (SELECT i.k FROM i)) SELECT c.id, (SELECT count(*) FROM c d WHERE"
    " d.a < c.a) AS n FROM c",
    "WITH c AS (SELECT i.k, count(*) AS n FROM i GROUP BY i.k) SELECT o.id FROM o WHERE o.a >= ALL (SELECT c.n FROM c)",
    "SELECT o.id, (WITH c AS (SELECT i.v FROM i WHERE i.k = o.a) SELECT count(*) FROM c, c d) AS x FROM o",
    "SELECT o.id FROM o WHERE o.a = (SELECT max(i.k) FROM i) UNION ALL SELECT j.k FROM j WHERE j.k IN (SELECT v FROM i)",
    "SELECT o.id, p.id AS q FROM o LEFT JOIN i p ON p.k = o.a WHERE (SELECT count(*) FROM j WHERE j.k = p.v) = 0",
    "SELECT o.id, p.id AS q, (SELECT count(*) FROM j WHERE j.k IS DISTINCT FROM p.v) AS x FROM o LEFT JOIN i p ON p.k = o.a",
    "SELECT o.id, (SELECT max(i.v) FROM i WHERE i.k = u.u) AS x FROM o, LATERAL unnest(ARRAY[o.a, o.b]) u",
    "SELECT o.id, (SELECT count(*) FROM i WHERE i.k < u.u) AS x FROM o, LATERAL unnest(ARRAY[o.a, o.b]) u",
    "SELECT o.id, (SELECT count(*) FROM i, LATERAL (SELECT j.v FROM j WHERE j.k = i.v AND j.v < o.b) l) AS x FROM o",
]  # fmt: skip

CONDITIONS = [
    "SELECT o.id, i.id AS x FROM o JOIN i ON i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v)",
    "SELECT o.id, i.id AS x FROM o JOIN i ON i.k = o.a AND i.v < (SELECT max(j.v) FROM j WHERE j.k = o.b)",
    "SELECT o.id, i.id AS x FROM o LEFT JOIN i ON i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v)",
    "SELECT o.id, i.id AS x FROM o LEFT JOIN i ON i.k = o.a AND i.v NOT IN (SELECT j.v FROM j)",
    "SELECT o.id, i.id AS x FROM o LEFT JOIN i ON i.k = o.a AND o.b IN (SELECT j.v FROM j)",
    "SELECT o.id, i.id AS x, j.v FROM o LEFT JOIN i ON i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k < o.a)"
    " LEFT JOIN j ON j.k = i.v",
    "SELECT o.id, i.id AS x, p.v FROM o LEFT JOIN (i JOIN j p ON p.k = i.v) ON i.k = o.a WHERE NOT EXISTS (SELECT 1 FROM"
    " e WHERE e.k = p.v)",
    "SELECT o.id, i.id AS x FROM o, i LEFT JOIN j ON j.k = i.v WHERE o.a = i.k AND EXISTS (SELECT 1 FROM j q WHERE q.k = o.b)",
    "SELECT o.id, i.id AS x FROM o, i RIGHT JOIN j ON j.k = i.v WHERE o.id < 3 AND EXISTS (SELECT 1 FROM j q WHERE q.k = o.b)",
]  # fmt: skip

LATERAL = [
    "SELECT o.id, l.w FROM o, LATERAL (SELECT i.v AS w FROM i WHERE i.k = o.a) l",
    "SELECT o.id, l.w, l.z FROM o, LATERAL (SELECT i.v + o.b AS w, i.id AS z FROM i WHERE i.k < o.a) l",
    "SELECT o.id, l.w, l.z FROM o LEFT JOIN LATERAL (SELECT i.v + o.b AS w, 1 AS z FROM i WHERE i.k = o.a) l ON true",
    "SELECT o.id, l.w, l.z FROM o LEFT JOIN LATERAL (SELECT coalesce(i.v, o.b) AS w, 1 AS z FROM i WHERE i.k < o.a) l"
    " ON l.w > 1",
    "SELECT o.id, l.w FROM o LEFT JOIN LATERAL (SELECT i.v AS w FROM i WHERE i.k = o.a OR i.v = o.b) l ON true",
    "SELECT o.id, l.w FROM o LEFT JOIN LATERAL (SELECT i.v AS w FROM i WHERE i.k = o.a AND o.f) l ON true",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT sum(i.v) AS s, count(*) AS c, o.a AS a FROM i WHERE i.k = o.a) l",
    "SELECT o.id, l.* FROM o LEFT JOIN LATERAL (SELECT sum(i.v) AS s, count(*) AS c FROM i WHERE i.k < o.a) l ON l.c > 1",
    "SELECT o.id, l.* FROM o JOIN LATERAL (SELECT sum(i.v) AS s, count(*) AS c FROM i WHERE i.k = o.a HAVING count(*) > 1)"
    " l ON l.s > 0",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.id AS x, i.v FROM i WHERE i.k = o.a ORDER BY i.v, i.id LIMIT 2) l",
    "SELECT o.id, l.* FROM o LEFT JOIN LATERAL (SELECT i.id AS x, i.v FROM i WHERE i.k = o.a ORDER BY i.v, i.id LIMIT 1"
    " OFFSET 1) l ON true",
    "SELECT o.id, l.* FROM o LEFT JOIN LATERAL (SELECT i.id AS x FROM i WHERE i.k >= o.a ORDER BY i.v, i.id LIMIT 2) l ON true",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.id AS x FROM i WHERE i.k = o.a ORDER BY i.v FETCH FIRST 1 ROW WITH TIES) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.v, count(*) AS c FROM i WHERE i.k = o.a GROUP BY i.v) l",
    "SELECT o.id, l.* FROM o LEFT JOIN LATERAL (SELECT i.v, count(*) AS c FROM i WHERE i.k < o.a GROUP BY i.v) l ON true",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT DISTINCT i.v, o.b FROM i WHERE i.k = o.a) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT DISTINCT ON (i.v) i.v, i.id AS x FROM i WHERE i.k = o.a ORDER BY i.v, i.id) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a UNION ALL SELECT o.b) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a UNION SELECT j.v FROM j WHERE j.k = o.a) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a UNION SELECT j.v FROM j WHERE j.k < o.a ORDER BY 1"
    " LIMIT 2) l",
    "SELECT o.id, l.x, l.x * 2 AS y FROM o, LATERAL (SELECT o.a + o.b AS x) l WHERE l.x > 1",
    "SELECT o.id, l.x, m.y FROM o, LATERAL (SELECT o.a + 1 AS x) l, LATERAL (SELECT l.x * 2 AS y WHERE l.x > 1) m",
    "SELECT o.id, v.n, v.c FROM o, LATERAL (VALUES ('a', o.a), ('b', o.b)) v(n, c)",
    "SELECT o.id, v.c FROM o LEFT JOIN LATERAL (VALUES (o.a), (o.b)) v(c) ON v.c > 1",
    "SELECT o.id, l.v, m.c FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a) l,"
    " LATERAL (SELECT count(*) AS c FROM j WHERE j.k = l.v AND j.v >= o.b) m",
    "SELECT o.id, l.v FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v AND"
    " j.v = o.b)) l",
    "SELECT o.id, l.v, u.u FROM o, LATERAL (SELECT j.arr, j.v FROM j WHERE j.k = o.a) l, LATERAL unnest(l.arr) u",
    "SELECT o.id, l.r, l.v FROM o, LATERAL (SELECT i.v, rank() OVER (ORDER BY i.v) AS r FROM i WHERE i.k = o.a) l",
    "SELECT o.b, sum(l.c) AS s FROM o, LATERAL (SELECT count(*) AS c FROM i WHERE i.k = o.a) l GROUP BY o.b",
    "SELECT o.id, l.v FROM o CROSS JOIN LATERAL (SELECT e.v FROM e) l",
    "SELECT o.id, l.* FROM o, LATERAL (SELECT i.id AS x FROM i ORDER BY abs(i.k - o.a), i.id LIMIT 2) l",
    "SELECT o.id, l.v, m.v AS w FROM o LEFT JOIN LATERAL (SELECT i.v FROM i WHERE i.k = o.a) l ON true LEFT JOIN LATERAL (SELECT j.v FROM j WHERE j.k = l.v AND j.v > o.b) m ON true",
    "SELECT o.id, l.x FROM o, LATERAL (SELECT (SELECT max(j.v) FROM j WHERE j.k = i.v) AS x FROM i WHERE i.k = o.a) l",
]  # fmt: skip

QUERIES = [*EXISTS, *MEMBERSHIP, *SCALAR, *CONDITIONS, *LATERAL]


def fill(conn: psycopg.Connection, seed: int) -> None:
    """Random rows; by the seed some tables stay empty."""
    chance = random.Random(seed)

    def maybe(value: object) -> object:
        return None if chance.random() < 0.2 else value

    def small() -> object:
        return maybe(chance.randint(0, 3))

    def word() -> object:
        return maybe(chance.choice(["a", "b", "B", ""]))

    def flag() -> object:
        return maybe(chance.random() < 0.5)

    counts = [(9, 12, 9), (9, 0, 9), (9, 12, 0), (0, 12, 9), (12, 4, 2), (1, 1, 1), (0, 0, 0)][seed % 7]
    conn.execute("DELETE FROM o; DELETE FROM i; DELETE FROM j")
    cursor = conn.cursor()
    o = [(n, small(), small(), word(), flag()) for n in range(counts[0])]
    i = [(n, small(), small(), small(), word(), flag()) for n in range(counts[1])]
    j = [(small(), small(), maybe([small(), small()])) for _ in range(counts[2])]
    cursor.executemany("INSERT INTO o VALUES (%s, %s, %s, %s, %s)", o)
    cursor.executemany("INSERT INTO i VALUES (%s, %s, %s, %s, %s, %s)", i)
    cursor.executemany("INSERT INTO j VALUES (%s, %s, %s)", j)


@pytest.fixture(scope="module")
def conn(server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE}".encode())
    with psycopg.connect(make_conninfo(server.dsn, dbname=DATABASE), autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())


@dataclass
class Pair:
    """A query and its rewrite."""

    query: str
    text: str


def rewritten(conn: psycopg.Connection, query: str) -> Pair:
    with scratch(conn, {}, None) as asking:
        tree = parse_query(describe(asking, query).canonical)
    assert tree is not None
    ctx = context(conn)
    result = subqueries.rewrite(qualify.rewrite(tree, ctx), ctx)
    assert_core(result)
    text = pg(result)
    with scratch(conn, {}, None) as asking:
        before = [(c.name, c.type) for c in describe(asking, query).columns]
    with scratch(conn, {}, None) as asking:
        after = [(c.name, c.type) for c in describe(asking, text).columns]
    assert before == after, text
    return Pair(query, text)


def assert_core(tree: exp.Query) -> None:
    """No subquery outside of FROM, and no LATERAL one."""
    for select in tree.find_all(exp.Select):
        for node in tr.block_nodes(select):
            if isinstance(node, exp.Lateral):
                assert not node.find(exp.Query), pg(select)
            if tr.is_query(node):
                in_from = node.find_ancestor(exp.From, exp.Join, exp.Select)
                assert isinstance(node, exp.Subquery) and node.alias and not isinstance(in_from, exp.Select), pg(select)
                assert node.find_ancestor(exp.Join) is None or node.arg_key == "this", pg(select)


def difference(conn: psycopg.Connection, left: str, right: str) -> list[tuple[object, ...]]:
    query = f"SELECT pgt_l::text FROM ({left}) pgt_l EXCEPT ALL SELECT pgt_r::text FROM ({right}) pgt_r"
    return conn.execute(query.encode()).fetchall()


def compare(conn: psycopg.Connection, pair: Pair) -> None:
    missing, extra = difference(conn, pair.query, pair.text), difference(conn, pair.text, pair.query)
    assert not missing and not extra, f"missing {missing}\nunexpected {extra}\n{pair.text}"


@pytest.mark.parametrize("query", sampled(QUERIES, every=2))
def test_the_meaning_stays(conn: psycopg.Connection, query: str) -> None:
    pair = rewritten(conn, query)
    for seed in range(7):
        fill(conn, seed)
        compare(conn, pair)


def test_a_query_without_subqueries_is_left_alone(conn: psycopg.Connection) -> None:
    ctx = context(conn)
    tree = parse_query(
        "SELECT o.id FROM public.o AS o, public.i AS i LEFT JOIN public.j AS j ON j.k = i.k WHERE i.k = o.a"
    )
    assert tree is not None
    assert subqueries.rewrite(tree, ctx) == tree


def test_a_second_row_raises_where_the_value_is_used(conn: psycopg.Connection) -> None:
    pair = rewritten(conn, "SELECT o.id, CASE WHEN o.b > 0 THEN (SELECT i.v FROM i WHERE i.k = o.a) END AS x FROM o")
    conn.execute("DELETE FROM o; DELETE FROM i; INSERT INTO i (id, k, v) VALUES (1, 1, 5), (2, 2, 6), (3, 2, 7)")
    conn.execute("INSERT INTO o (id, a, b) VALUES (1, 1, 1), (2, 2, 0), (3, 3, 1)")
    compare(conn, pair)
    conn.execute("INSERT INTO o (id, a, b) VALUES (4, 2, 1)")
    with pytest.raises(psycopg.errors.CardinalityViolation):
        conn.execute(pair.text.encode()).fetchall()


FORMS = [
    # A condition that has to hold joins distinct keys, and nothing is padded.
    (EXISTS[0], ["JOIN (SELECT DISTINCT"], ["LEFT JOIN", "pgt_present"]),
    (MEMBERSHIP[0], ["JOIN (SELECT DISTINCT"], ["LEFT JOIN", "BOOL_OR"]),
    (EXISTS[2], ["LEFT JOIN (SELECT DISTINCT", '"pgt_present" IS NULL'], ["NOT"]),
    # A domain below DISTINCT needs no DISTINCT of its own, and NULL cannot match a comparison.
    ("SELECT * FROM o WHERE NOT EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v < o.b)",
     ['FROM (SELECT "o"."a" AS "pgt_d0", "o"."b" AS "pgt_d1" FROM "public"."o" AS "o") AS'], ["IS NOT DISTINCT FROM"]),
    ("SELECT o.id, (SELECT count(*) FROM i WHERE i.k IS DISTINCT FROM o.a) AS y FROM o",
     ['(SELECT DISTINCT "o"."a" AS "pgt_d0"', "IS NOT DISTINCT FROM"], []),
    # An aggregate with equalities is grouped by them, without a domain.
    ("SELECT * FROM o WHERE o.b < (SELECT 0.2 * avg(i.v) FROM i WHERE i.k = o.a)", ['GROUP BY "i"."k"'], ["pgt_d"]),
    # A unique key gives one row: the table is joined as it is.
    ("SELECT o.id, (SELECT i.v FROM i WHERE i.id = o.a) AS x FROM o", ['LEFT JOIN (SELECT "i"."v"'], ["_single", "COUNT"]),
    # Values that are never NULL need no second derived table.
    ("SELECT * FROM o WHERE o.id NOT IN (SELECT i.id FROM i)", ['"pgt_present" IS NULL'], ["BOOL_OR", "CASE"]),
    ("SELECT o.id, v.c FROM o, LATERAL (VALUES (o.a), (o.b)) v(c)", ["(VALUES (1), (2))"], ["UNION", "DISTINCT"]),
    ("SELECT o.id, l.x FROM o, LATERAL (SELECT o.a + o.b AS x) l", [], ["JOIN", "LATERAL"]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "there", "absent"), FORMS)
def test_the_form_is_cheap(conn: psycopg.Connection, query: str, there: list[str], absent: list[str]) -> None:
    text = rewritten(conn, query).text
    for part in there:
        assert part in text
    for part in absent:
        assert part not in text


def test_the_same_subquery_is_joined_once(conn: psycopg.Connection) -> None:
    value = "(SELECT max(i.v) FROM i WHERE i.k = o.a)"
    text = rewritten(conn, f"SELECT {value} AS x, {value} + 1 AS y FROM o WHERE {value} > 0").text
    assert text.count("LEFT JOIN") == 1


REFUSED = [
    ("SELECT o.id FROM o LEFT JOIN i ON i.k = o.a AND EXISTS (SELECT 1 FROM j WHERE j.k = i.v + o.b)",
     "a subquery in the condition of an outer join"),
    ("SELECT o.id FROM o FULL JOIN i ON i.k = o.a AND i.v = (SELECT max(k) FROM j)",
     "a subquery in the condition of an outer join"),
    ("SELECT o.id FROM o LEFT JOIN (i JOIN j ON j.k = i.v AND j.v IN (SELECT k FROM e)) ON i.k = o.a",
     "a subquery in the condition of an outer join"),
    ("SELECT o.id FROM o ORDER BY o.id LIMIT (SELECT max(k) FROM i)", "a subquery in LIMIT"),
    ("SELECT g FROM generate_series(1, (SELECT max(k) FROM i)) g", "a subquery in an argument of a function in FROM"),
    ("SELECT v.a FROM (VALUES ((SELECT max(k) FROM i)), (2)) v(a)", "a subquery in VALUES"),
    ("SELECT o.id FROM o WHERE (o.a, o.b) = (SELECT i.k, i.v FROM i WHERE i.id = o.id)",
     "a subquery of several columns used as a value"),
    ("SELECT o.id, l.v FROM o, LATERAL (SELECT i.v FROM i WHERE i.k = o.a ORDER BY i.id LIMIT o.b) l",
     "LIMIT with an expression in a correlated subquery"),
    ("SELECT o.id, (SELECT rank(1) WITHIN GROUP (ORDER BY i.v) FROM i WHERE i.k = o.a) AS x FROM o",
     "the aggregate rank() in a correlated subquery"),
    ("SELECT o.id FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.s < (o.*)::text)",
     "a whole row of an outer query used in a subquery"),
    ("SELECT o.id FROM o WHERE EXISTS (SELECT 1 FROM i FULL JOIN j ON j.k = i.k AND j.v = o.b WHERE i.v = o.a)",
     "a correlated subquery over a RIGHT, FULL or nested outer join"),
    ("SELECT o.id FROM o WHERE o.a IN (WITH RECURSIVE r AS (SELECT o.b AS n UNION SELECT r.n + 1 FROM r WHERE r.n < 3)"
     " SELECT r.n FROM r)", "WITH RECURSIVE inside a correlated subquery"),
    ("SELECT o.id, (SELECT sum(count(*)) OVER () FROM i WHERE i.k = o.a) AS x FROM o",
     "a window function over an aggregate without GROUP BY in a subquery"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "reason"), REFUSED)
def test_what_is_refused(conn: psycopg.Connection, query: str, reason: str) -> None:
    with pytest.raises(NotDifferentiable) as refusal:
        rewritten(conn, query)
    assert str(refusal.value) == reason


def test_inequalities_of_one_table_are_counted_in_the_same_groups(conn: psycopg.Connection) -> None:
    """Two questions about the same keys, the second with a condition more: no pairs, no second table of groups."""
    query = (
        "SELECT o.id FROM o WHERE EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.id <> o.id)"
        " AND NOT EXISTS (SELECT 1 FROM i x WHERE x.k = o.a AND x.id <> o.id AND x.f)"
    )
    text = rewritten(conn, query).text
    assert text.count("GROUP BY") == 1
    assert "DISTINCT" not in text
    assert "FILTER" in text


def test_only_wanted_keys_are_kept(conn: psycopg.Connection) -> None:
    """A constant picks few rows of a table, whose key the subquery asks for."""
    text = rewritten(conn, "SELECT o.id, (SELECT sum(i.v) FROM i WHERE i.k = o.id) AS x FROM o WHERE o.a = 1").text
    assert text.count('"public"."o"') == 2
    for other in ("o.a > 1", "o.a = o.b", "o.a = 1 OR o.b = 1"):
        query = f"SELECT o.id, (SELECT sum(i.v) FROM i WHERE i.k = o.id) AS x FROM o WHERE {other}"
        assert rewritten(conn, query).text.count('"public"."o"') == 1
    repeated = "SELECT o.id, (SELECT sum(i.v) FROM i WHERE i.k = o.b) AS x FROM o WHERE o.a = 1"
    assert rewritten(conn, repeated).text.count('"public"."o"') == 1
