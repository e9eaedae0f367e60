"""Digits after the point: known where the query tells, and never too few."""

from __future__ import annotations

import pytest

from runnel.model.types import Column, PgType
from runnel.sql.parse import parse_query
from runnel.sql.scales import result_scales

UNBOUNDED = PgType(1700, -1, "numeric")
SALES = [
    Column("id", PgType(23, -1, "integer")),
    Column("price", PgType(1700, (10 << 16 | 2) + 4, "numeric(10,2)")),
    Column("rate", PgType(1700, (5 << 16 | 4) + 4, "numeric(5,4)")),
    Column("free", UNBOUNDED),
    Column("name", PgType(25, -1, "text")),
]


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
        ("lag(s.price) OVER (ORDER BY s.id)", None),
    ],
)
def test_scales(item: str, scale: int | None) -> None:
    tree = parse_query(f"SELECT {item} AS x FROM public.sales s")
    assert tree is not None
    found = result_scales(tree, [Column("x", UNBOUNDED)], {("public", "sales"): SALES})
    assert found == ({} if scale is None else {"x": scale})


def test_scales_pass_through_subqueries() -> None:
    tree = parse_query(
        "WITH c AS (SELECT sum(s.price) AS total FROM public.sales s) "
        "SELECT d.total * 2 AS a, d.rest AS b FROM (SELECT c.total, c.total / 3 AS rest FROM c) d "
        "UNION ALL SELECT u.rate, u.rate FROM public.sales u"
    )
    assert tree is not None
    columns = [Column("a", UNBOUNDED), Column("b", UNBOUNDED)]
    assert result_scales(tree, columns, {("public", "sales"): SALES}) == {"a": 4}
    recursive = parse_query("WITH RECURSIVE r AS (SELECT 1.5 AS n UNION ALL SELECT r.n * 1.5 FROM r) SELECT r.n FROM r")
    assert recursive is not None
    assert result_scales(recursive, [Column("n", UNBOUNDED)], {}) == {}
