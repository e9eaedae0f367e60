from __future__ import annotations

import pytest
from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import qualify, table_functions
from runnel.sql.rewrite import tree as tr
from tests.rewrite.conftest import Judge, context

QUERIES = [
    "SELECT a, unnest(arr) FROM t",
    "SELECT a, unnest(arr) + 1 AS k FROM t WHERE b > 0",
    "SELECT a, unnest(arr) AS x, generate_series(1, a) AS y FROM t",
    "SELECT id, (json_each(j)).* FROM t",
    "SELECT id, (json_each(j)).key, unnest(arr) FROM t",
    "SELECT generate_series(1, 3)",
    "SELECT generate_series(1, 3), generate_series(1, 2) AS d",
    "SELECT unnest(arr) AS u, count(*) FROM t GROUP BY 1",
    "SELECT unnest(arr) AS u, generate_series(1, a) AS g, count(*) FROM t GROUP BY 1, 2 HAVING count(*) > 1",
    "SELECT a, count(*), generate_series(1, count(*)) FROM t GROUP BY a HAVING count(*) > 1",
    "SELECT generate_series(1, count(*)) FROM t",
    "SELECT generate_series(1, 2) AS g, 5 AS five FROM t GROUP BY a",
    "SELECT generate_series(1, 2) AS g FROM t HAVING count(*) > 3",
    "SELECT unnest(array_agg(a ORDER BY id)) AS x, max(b) + 1 AS m FROM t GROUP BY s",
    "SELECT DISTINCT unnest(arr) AS z FROM t",
    "SELECT DISTINCT a, unnest(arr) % 2 AS z FROM t ORDER BY z DESC, a LIMIT 3",
    "SELECT id, generate_series(1, row_number() OVER (ORDER BY id)) AS g FROM t",
    "SELECT id, generate_series(1, row_number() OVER (ORDER BY id)) AS g FROM t ORDER BY id DESC, g LIMIT 5",
    "SELECT generate_series(1, unnest(arr)) AS g, unnest(arr) AS h, id FROM t",
    "SELECT generate_series(1, unnest(arr)) AS g, generate_series(1, a) AS h, id FROM t",
    "SELECT id FROM t WHERE a IN (SELECT unnest(arr)) AND EXISTS (SELECT generate_series(1, t.a))",
    "SELECT a FROM t ORDER BY unnest(arr)",
    "SELECT DISTINCT ON (a) a, unnest(arr) AS u FROM t ORDER BY a, u DESC",
    "SELECT string_to_table(s, ',') AS w, id FROM t",
    "SELECT generate_series(1, 3) + a AS q, generate_series(1, 3) * 2 AS w FROM t",
    "SELECT (pairs(a)).l, (pairs(a)).r, id FROM t",
    "SELECT t.id, f.x FROM t, LATERAL (SELECT unnest(t.arr) AS x) f",
    "SELECT id, x FROM (SELECT id, unnest(arr) AS x FROM t) q WHERE x > 0",
    "WITH q AS (SELECT id, arr FROM t) SELECT q.id, unnest(q.arr) AS x FROM q JOIN u ON u.id = q.id",
    "SELECT id, unnest(arr) AS x FROM t FULL JOIN u USING (id)",
    "SELECT a FROM u UNION ALL SELECT unnest(arr) FROM t",
    "SELECT t.id, f.x FROM t, unnest(t.arr) AS f(x)",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_meaning_stays(judge: Judge, query: str) -> None:
    text = judge.equal(query, qualify.rewrite, table_functions.rewrite)
    tree = parse_query(text)
    assert tree is not None
    ctx = context(judge.conn)
    for select in tree.find_all(exp.Select):
        calls = [tr.function_name(n) for n in tr.block_nodes(select, "expressions", "order", "group", "distinct")]
        assert not any(c and ctx.is_set_returning(c) for c in calls), text


def test_a_set_of_rows_is_no_value(judge: Judge) -> None:
    with pytest.raises(NotDifferentiable, match="returns rows"):
        judge.rewritten("SELECT pairs(a) FROM t", qualify.rewrite, table_functions.rewrite)
