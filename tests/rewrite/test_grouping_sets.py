from __future__ import annotations

import random

import pytest
from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.parse import parse_query
from runnel.sql.rewrite import grouping_sets, qualify
from tests.rewrite.conftest import Judge

QUERIES = [
    "SELECT a, s, sum(b), grouping(a, s) FROM t GROUP BY ROLLUP (a, s)",
    "SELECT a, s, sum(b), grouping(s, a) FROM t GROUP BY CUBE (a, s)",
    "SELECT a, sum(a), count(a), array_agg(a ORDER BY a) FROM t GROUP BY ROLLUP (a)",
    "SELECT a, b, sum(a) FROM t GROUP BY GROUPING SETS ((a), (b), (a, b), ())",
    "SELECT a, count(*) FROM t GROUP BY GROUPING SETS ((a), (a), (), ())",
    "SELECT a, b, s, count(*) FROM t GROUP BY a, ROLLUP (b, s)",
    "SELECT a, b, s, count(*) FROM t GROUP BY ROLLUP (a, b), CUBE (b, s)",
    "SELECT a, b, s, count(*) FROM t GROUP BY DISTINCT ROLLUP (a, b), ROLLUP (a, s)",
    "SELECT a, b, count(*) FROM t GROUP BY GROUPING SETS (ROLLUP (a, b), CUBE (b), (a, s))",
    "SELECT a, b, s FROM t GROUP BY ROLLUP ((a, b), s)",
    "SELECT a + 1 AS x, count(*) FILTER (WHERE a > 1) FROM t GROUP BY GROUPING SETS ((a + 1), (a))",
    "SELECT a, a + 1 AS x, coalesce(a + 1, -a) AS y FROM t GROUP BY CUBE (a, (a + 1))",
    "SELECT a, sum(b) FROM t GROUP BY ROLLUP (a) HAVING sum(b) > 3 OR grouping(a) = 1",
    "SELECT a, s, count(*) FROM t GROUP BY ROLLUP (a, s) HAVING a IS NULL AND grouping(s) = 1",
    "SELECT coalesce(s, 'all') AS s, count(DISTINCT a) FROM t GROUP BY ROLLUP (s)",
    "SELECT count(*) FROM t GROUP BY ()",
    "SELECT 1 AS one FROM t GROUP BY ()",
    "SELECT a, grouping(a) FROM t GROUP BY GROUPING SETS ((a))",
    "SELECT a, count(*), grouping(a) AS g FROM t GROUP BY a",
    "SELECT grouping(a, b) AS g, rank() OVER (PARTITION BY grouping(a, b) ORDER BY sum(b)) AS r, sum(b) AS x "
    "FROM t GROUP BY ROLLUP (a, b)",
    "SELECT a, sum(sum(b)) FILTER (WHERE a > 0) OVER () AS x FROM t GROUP BY ROLLUP (a)",
    "SELECT DISTINCT a FROM t GROUP BY ROLLUP (a, s)",
    "SELECT a, s, count(*) FROM t GROUP BY CUBE (a, s) ORDER BY 3 DESC, a, s, grouping(a, s) LIMIT 7",
    "SELECT a, (SELECT count(*) + sum(u.c + t.a) FROM u WHERE u.a = t.a) AS f FROM t GROUP BY ROLLUP (a)",
    "SELECT a, (SELECT max(u.c + t.a) FROM u) AS f, row_number() OVER (ORDER BY a, grouping(a)) AS r "
    "FROM t GROUP BY ROLLUP (a)",
    "SELECT id, count(t.a) AS m, count(u.c) AS n FROM t FULL JOIN u USING (id) GROUP BY ROLLUP (id)",
    "SELECT id, t.s, row_number() OVER (ORDER BY id, t.s, grouping(id, t.s)) FROM t FULL JOIN u USING (id) "
    "GROUP BY CUBE (id, t.s)",
    "SELECT t.a, u.s, sum(u.c) FROM t JOIN u ON u.a = t.a WHERE t.b > 0 GROUP BY CUBE (t.a, u.s)",
    "SELECT id, a, b, count(*) FROM t GROUP BY GROUPING SETS ((id, b), (id))",
    "SELECT s, m, count(*) FROM col GROUP BY CUBE (s, m)",
    "SELECT u.s, u.c, string_agg(u.s, ',' ORDER BY u.s) FROM u GROUP BY CUBE (s, c)",
    "SELECT a, percentile_disc(0.5) WITHIN GROUP (ORDER BY b) FROM t GROUP BY CUBE (a, s)",
    "WITH q AS (SELECT a, b FROM t) SELECT a, b, count(*) FROM q GROUP BY CUBE (a, b)",
    "WITH q AS (SELECT a, b FROM t) SELECT a, b, count(*) FROM q GROUP BY CUBE (a, b) ORDER BY a, b, 3 LIMIT 4",
    "SELECT x.a, x.n FROM (SELECT a, count(*) AS n FROM t GROUP BY ROLLUP (a)) x WHERE x.n > 2",
    "SELECT id, (SELECT max(f.n) FROM (SELECT count(*) AS n FROM u WHERE u.id = t.a GROUP BY ROLLUP (u.a)) f) FROM t",
    "SELECT a, count(*) FROM t GROUP BY ROLLUP (a) UNION ALL SELECT x, 1 FROM k",
    "SELECT date_trunc('month', d) AS d, count(*) FROM (SELECT '2024-01-01'::timestamp(3) + a * '20 days'::interval "
    "AS d, b FROM t) q GROUP BY CUBE (1, b)",
    "SELECT n::numeric(8, 3) AS n, b FROM t GROUP BY CUBE (n::numeric(8, 3), b)",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_meaning_stays(judge: Judge, query: str) -> None:
    text = judge.equal(query, qualify.rewrite, grouping_sets.rewrite)
    tree = parse_query(text)
    assert tree is not None
    assert tree.find(exp.Rollup, exp.Cube, exp.GroupingSets) is None


def _clause(pick: random.Random) -> str:
    """A random GROUP BY item."""
    keys = pick.sample(["a", "b", "s", "a + b", "(a, s)"], pick.randint(1, 2))
    match pick.randint(0, 3):
        case 0:
            return f"ROLLUP ({', '.join(keys)})"
        case 1:
            return f"CUBE ({', '.join(keys)})"
        case 2:
            sets = pick.choices(["()", "(a)", "(a, b)", "(s)", "ROLLUP (s, a)", "(a + b)"], k=pick.randint(1, 3))
            return f"GROUPING SETS ({', '.join(sets)})"
        case _:
            return keys[0]


@pytest.mark.parametrize("seed", range(20))
def test_random_clauses(judge: Judge, seed: int) -> None:
    pick = random.Random(seed)
    items = ", ".join(_clause(pick) for _ in range(pick.randint(1, 2)))
    tree = judge.tree(f"SELECT count(*) AS n, sum(a) AS x, min(s) FILTER (WHERE b > 0) AS m FROM t GROUP BY {items}")
    sets = grouping_sets.grouping_sets(tree.args["group"])
    keys = list(dict.fromkeys(k for s in sets for k in s))
    shown = ", ".join(f"{k} AS k{i}" for i, k in enumerate(keys))
    bits = f", grouping({', '.join(keys)}) AS g" if keys else ""
    query = (
        f"SELECT {shown + ', ' if shown else ''} count(*) AS n, sum(a) AS x, min(s) FILTER (WHERE b > 0) AS m {bits} "
        f"FROM t GROUP BY {items} HAVING count(*) <> 2"
    )
    judge.equal(query, qualify.rewrite, grouping_sets.rewrite)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT count(*) FROM t GROUP BY CUBE (id, a, b, s, n), ROLLUP (arr, id)", "grouping sets in one GROUP BY"),
        ("SELECT 2 AS two, a, count(*) FROM t GROUP BY CUBE (1, a)", "a constant as a key"),
        ("SELECT a, (SELECT sum(t.b)) AS x FROM t GROUP BY ROLLUP (a)", "aggregate of the outer query"),
    ],
)
def test_refused(judge: Judge, query: str, why: str) -> None:
    with pytest.raises(NotDifferentiable, match=why):
        judge.rewritten(query, qualify.rewrite, grouping_sets.rewrite)
