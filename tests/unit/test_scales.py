"""Digits after the point: known where the query tells, and never too few."""

from __future__ import annotations

import pytest

from runnel.model.types import Column, PgType
from runnel.sql.parse import parse_query
from runnel.sql.scales import column_scales, result_scales

UNBOUNDED = PgType(1700, -1, "numeric")
SALES = [
    Column("id", PgType(23, -1, "integer")),
    Column("price", PgType(1700, (10 << 16 | 2) + 4, "numeric(10,2)")),
    Column("rate", PgType(1700, (5 << 16 | 4) + 4, "numeric(5,4)")),
    Column("free", UNBOUNDED),
    Column("name", PgType(25, -1, "text")),
]
TABLES = {("public", "sales"): column_scales(SALES)}


@pytest.mark.parametrize(
    ("item", "scale"),
    [
        ("sum(s.price)", 2),
        ("sum(price)", 2),
        ("sum(s.id)", 0),
        ("sum(s.price * (1::numeric - s.rate))", 6),
        ("min(s.rate) FILTER (WHERE s.id > 3)", 4),
        ("COALESCE(sum(s.price), 0::numeric)", 2),
        ("sum(s.price) OVER (PARTITION BY s.name)", 2),
        ("round(avg(s.price), 3)", 3),
        ("CASE WHEN s.id > 1 THEN s.price ELSE s.rate END", 4),
        ("CASE WHEN s.id > 1 THEN s.price END", 2),
        ("s.free::numeric(12,5)", 5),
        ("1.25 + s.price", 2),
        ("sum(DISTINCT s.price)", 2),
        ("(SELECT max(t.rate) FROM public.sales t)", 4),
        ("avg(s.price)", None),
        ("s.price / 3::numeric", None),
        ("sum(s.free)", None),
        ("s.free::numeric", None),
        ("round(s.price, s.id)", None),
        ("power(s.price, 2::numeric)", None),
        ("round(s.free, (-2))", 0),
        ("trunc(s.free, 3)", 3),
        ("NULLIF(s.price, s.rate)", 2),
        ("mod(s.price, s.rate)", 4),
        ("s.price % 0.125", 3),
        ("s.price + '-1.125'::numeric", 3),
        ("any_value(s.price)", 2),
        ("lag(s.price) OVER (ORDER BY s.id)", 2),
        ("lead(s.price, 1, 0.125) OVER (ORDER BY s.id)", 3),
        ("percentile_disc((0.5)::double precision) WITHIN GROUP (ORDER BY s.price)", 2),
        ("EXTRACT(epoch FROM now())", 6),
        ("EXTRACT(julian FROM now())", None),
        ("public.round(s.free)", None),
        ("(s.price)::double precision::numeric", None),
        ("s.name::numeric", None),
        ("variance(s.price)", None),
    ],
)
def test_scales(item: str, scale: int | None) -> None:
    tree = parse_query(f"SELECT {item} AS x FROM public.sales s")
    assert tree is not None
    found = result_scales(tree, [Column("x", UNBOUNDED)], TABLES, {})
    assert found == ({} if scale is None else {"x": scale})


def test_scales_pass_through_subqueries() -> None:
    tree = parse_query(
        "WITH c AS (SELECT sum(s.price) AS total FROM public.sales s) "
        "SELECT d.total * 2 AS a, d.rest AS b FROM (SELECT c.total, c.total / 3 AS rest FROM c) d "
        "UNION ALL SELECT u.rate, u.rate FROM public.sales u"
    )
    assert tree is not None
    columns = [Column("a", UNBOUNDED), Column("b", UNBOUNDED)]
    assert result_scales(tree, columns, TABLES, {}) == {"a": 4}
    recursive = parse_query("WITH RECURSIVE r AS (SELECT 1.5 AS n UNION ALL SELECT r.n * 1.5 FROM r) SELECT r.n FROM r")
    assert recursive is not None
    assert result_scales(recursive, [Column("n", UNBOUNDED)], {}, {}) == {}


JOINS = {
    ("public", "a"): {"id": 0, "x": 2, "y": None},
    ("public", "b"): {"id": 0, "x": 4, "z": 1},
}


@pytest.mark.parametrize(
    ("query", "scale"),
    [
        ("SELECT sum(a.x) AS v FROM (public.a JOIN public.b ON ((a.id = b.id)))", 2),
        ("SELECT max(q.x) AS v FROM ((public.a p JOIN public.b q ON (true)) LEFT JOIN public.a r USING (id))", 4),
        ("SELECT id AS v FROM (public.a FULL JOIN public.b USING (id))", 0),
        ("SELECT x AS v FROM (public.a FULL JOIN generate_series(1.5, 9) g(x) USING (x))", None),
        ("SELECT q.n AS v FROM public.b q(id, n, x)", 4),
        ("SELECT q.x AS v FROM public.b q(id, n, x)", 1),
        ("SELECT j.x AS v FROM (public.a JOIN public.b USING (id)) j(id, y, x, z)", None),
        ("SELECT l.w AS v FROM (public.a CROSS JOIN LATERAL ( SELECT (a.x * b.z) AS w FROM public.b) l)", 3),
        ("SELECT ( SELECT max((b.z + a.x)) AS max FROM public.b) AS v FROM public.a", 2),
        ("SELECT w.n AS v FROM ( VALUES (1.5,1), ('-2.25'::numeric,2)) w(n, m)", 2),
        ("SELECT a.x AS v FROM public.a INTERSECT SELECT b.x FROM public.b", 4),
        ("SELECT a.y AS v FROM (public.a JOIN public.b USING (id))", None),
        ("SELECT v.total AS v FROM (public.v JOIN public.a ON (true))", 2),
        ("WITH a AS (SELECT b.x AS x FROM public.b) SELECT a.x AS v FROM a", 4),
        ("SELECT c.v FROM (public.c JOIN public.a ON (true))", None),
    ],
)
def test_digits_are_followed_through_from(query: str, scale: int | None) -> None:
    tree = parse_query(query)
    view = parse_query("SELECT sum(a.x) AS total FROM (public.a JOIN public.b USING (id))")
    assert tree is not None and view is not None
    tables = {**JOINS, ("public", "v"): {"total": None}}
    found = result_scales(tree, [Column("v", UNBOUNDED)], tables, {("public", "v"): view})
    assert found == ({} if scale is None else {"v": scale})
