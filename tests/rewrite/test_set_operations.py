from __future__ import annotations

import pytest
from sqlglot import exp

from runnel.sql.parse import parse_query
from runnel.sql.rewrite import qualify, set_operations
from tests.rewrite.conftest import Judge

QUERIES = [
    "SELECT a FROM t INTERSECT SELECT a FROM u",
    "SELECT a FROM t EXCEPT SELECT a FROM u",
    "SELECT a FROM t INTERSECT ALL SELECT a FROM u",
    "SELECT a FROM t EXCEPT ALL SELECT a FROM u",
    "SELECT a, s FROM t EXCEPT ALL SELECT a, s FROM u",
    "SELECT a, b, s FROM t INTERSECT SELECT a, c, s FROM u",
    "SELECT a FROM t EXCEPT SELECT c FROM u",
    "SELECT n FROM t INTERSECT ALL SELECT c FROM u",
    "SELECT a FROM t EXCEPT SELECT a FROM u EXCEPT SELECT 1",
    "SELECT a FROM t EXCEPT ALL (SELECT a FROM u EXCEPT ALL SELECT x FROM k)",
    "SELECT a FROM t UNION ALL SELECT a FROM u INTERSECT SELECT x FROM k",
    "(SELECT a FROM t UNION ALL SELECT a FROM u) INTERSECT ALL SELECT x FROM k",
    "(SELECT a FROM t UNION SELECT a FROM u) EXCEPT (SELECT x FROM k INTERSECT SELECT y FROM k)",
    "SELECT a, s FROM t EXCEPT ALL SELECT a, s FROM u ORDER BY 2 DESC NULLS LAST, 1 LIMIT 4",
    "SELECT a, s FROM t INTERSECT SELECT a, s FROM u ORDER BY a, s OFFSET 1",
    "(SELECT a FROM t ORDER BY a, id LIMIT 5) INTERSECT ALL (SELECT a FROM u ORDER BY a LIMIT 3)",
    "SELECT DISTINCT a FROM t EXCEPT ALL SELECT a FROM u",
    "SELECT a, count(*) FROM t GROUP BY a EXCEPT SELECT a, count(*) FROM u GROUP BY a",
    "WITH q AS (SELECT a FROM t WHERE b > 0) SELECT a FROM q INTERSECT ALL SELECT a FROM u",
    "SELECT a FROM t INTERSECT (WITH q AS (SELECT a FROM u) SELECT a FROM q)",
    'SELECT s COLLATE "C" AS s FROM t EXCEPT SELECT s FROM u',
    "SELECT s FROM col INTERSECT SELECT s FROM col",
    "SELECT NULL AS x, 'b' AS y FROM t INTERSECT SELECT a, s FROM u",
    "SELECT id FROM t WHERE EXISTS (SELECT u.a FROM u WHERE u.id = t.id INTERSECT SELECT t.b)",
    "SELECT id FROM t WHERE a IN (SELECT u.a FROM u EXCEPT ALL SELECT x FROM k WHERE k.y = t.b)",
    "SELECT q.a, q.b FROM (SELECT a, b FROM t EXCEPT SELECT a, id FROM u) q JOIN u ON u.a = q.a",
    "SELECT x FROM (SELECT a FROM t INTERSECT SELECT a FROM u) q (x)",
    "SELECT u.a, f.z FROM u, LATERAL (SELECT t.a AS z FROM t WHERE t.id < u.a EXCEPT ALL SELECT u.c) f",
    "VALUES (1, 'a'), (1, 'a'), (2, NULL) EXCEPT ALL SELECT a, s FROM t",
    "SELECT a FROM t INTERSECT SELECT a::numeric(6, 2) FROM u",
    "SELECT sum(a) FROM t EXCEPT SELECT NULL",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_meaning_stays(judge: Judge, query: str) -> None:
    text = judge.equal(query, qualify.rewrite, set_operations.rewrite)
    tree = parse_query(text)
    assert tree is not None
    assert tree.find(exp.Intersect, exp.Except) is None


def test_union_stays(judge: Judge) -> None:
    query = "SELECT a FROM t UNION SELECT a FROM u UNION ALL SELECT x FROM k"
    before = judge.rewritten(query, qualify.rewrite)
    assert judge.rewritten(query, qualify.rewrite, set_operations.rewrite) == before
