"""Aggregate calls: which nodes are calls, how they are taken apart, and what is kept of their values."""

from __future__ import annotations

import pytest
from sqlglot import exp

from runnel.apply.counters import value_sql
from runnel.apply.group_tables import value_definitions
from runnel.apply.tables import StageTables, bag_hash, bag_items
from runnel.model.types import PgType
from runnel.plan import expr as ex
from runnel.plan.stage import Aggregate, Bag, GroupHead
from runnel.sql.aggregates import aggregate_calls, called_names, is_aggregate, mark_aggregates
from runnel.sql.calls import parse_call
from runnel.sql.parse import parse_query

INT, NUMERIC, TEXT = PgType(23, -1, "integer"), PgType(1700, -1, "numeric"), PgType(25, -1, "text")
BOUNDED, LOOSE = PgType(1700, (10 << 16) + 6, "numeric(10,2)"), PgType(0, -1, "text")


def item(text: str, *own: str) -> exp.Expr:
    tree = parse_query(f"SELECT {text} FROM t")
    assert tree is not None
    mark_aggregates(tree, frozenset(own))
    # Marks and shapes must outlive what rewrites do.
    kept = ex.rewrite(tree, lambda node: None).copy()
    assert isinstance(kept, exp.Select)
    (expression,) = kept.expressions
    assert isinstance(expression, exp.Expr)
    return expression


@pytest.mark.parametrize(
    "text",
    [
        "string_agg(DISTINCT x, y ORDER BY x, y) FILTER(WHERE z)",
        "json_object_agg(DISTINCT k, v)",
        "s.own(x ORDER BY y) FILTER(WHERE z)",
        "s.own(1) WITHIN GROUP (ORDER BY x) FILTER(WHERE z)",
        's."Own"(x) FILTER(WHERE z) OVER (PARTITION BY y)',
        "s.own(VARIADIC x)",
        "(s.own(x)).f",
    ],
)
def test_calls_are_printed_as_they_were_read(text: str) -> None:
    assert ex.pg(item(text)) == text


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("a + max(b) FILTER (WHERE c)", ["MAX(b) FILTER(WHERE c)"]),
        ("rank() OVER (ORDER BY sum(x))", ["SUM(x)"]),
        ("sum(x) FILTER (WHERE max(y) > 1) OVER ()", ["MAX(y)"]),
        ("rank(1) WITHIN GROUP (ORDER BY x)", ["rank(1) WITHIN GROUP (ORDER BY x)"]),
        ("s.own(x) + s.other(x) + s.max(x)", ["s.own(x)"]),
        ("s.own(max(x)) OVER w", ["MAX(x)"]),
        ("(SELECT count(*) FROM u) + f(x)", []),
    ],
)
def test_aggregates_of_a_block(text: str, calls: list[str]) -> None:
    tree = item(text, "own")
    assert [ex.pg(c) for c in aggregate_calls(tree)] == calls
    assert all(is_aggregate(c) for c in aggregate_calls(tree))


def test_every_name_that_postgresql_reports_is_found() -> None:
    tree = parse_query("SELECT variance(x), every(y), s.own(z), rank() OVER (), stddev_samp(x) FROM t")
    assert tree is not None
    mark_aggregates(tree, {"own"})
    assert {"variance", "every", "own", "stddev_samp"} <= called_names(tree)
    assert "f" not in called_names(tree)


@pytest.mark.parametrize(
    ("text", "body", "values"),
    [
        ("string_agg(a, ', ' ORDER BY b DESC, a)", "string_agg(b.v0, ', ' ORDER BY b.v1 DESC, b.v0)", ["a", "b"]),
        ("array_agg(DISTINCT a + 1 ORDER BY (a + 1))", "array_agg(DISTINCT b.v0 ORDER BY b.v0)", ["a + 1"]),
        ("json_agg(ROW(a, f(b)))", "JSON_AGG(ROW(b.v0, b.v1))", ["a", "f(b)"]),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY a)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY b.v0)", ["a"]),
        ("array_agg(1)", "array_agg(1)", []),
        ("s.own(VARIADIC a)", "s.own(VARIADIC b.v0)", ["a"]),
        ("array_agg(s.f(a) ORDER BY (c).x)", "array_agg(b.v0 ORDER BY b.v1)", ["s.f(a)", "(c).x"]),
    ],
)
def test_a_call_over_a_bag(text: str, body: str, values: list[str]) -> None:
    found: list[exp.Expr] = []

    def value(node: exp.Expr) -> exp.Expr:
        if node.unnest() not in found:
            found.append(node.unnest())
        return exp.column(f"v{found.index(node.unnest())}", table="b")

    call = parse_call(item(text, "own"))
    assert ex.pg(call.over(value, lambda node: node)) == body
    assert [ex.pg(v) for v in found] == values


def test_values_are_told_apart_by_their_looks_or_by_equality() -> None:
    types = (INT, NUMERIC, BOUNDED, TEXT, LOOSE)
    names = [f"v{i}" for i in range(5)]
    bag = Bag((0, 1, 2, 3, 4), types, (None,) * 5)
    image = '((v{})::text COLLATE "C")'
    assert bag_items(bag, names) == ["v0", image.format(1), "v2", "v3", image.format(4)]
    equal = Bag(bag.values, types, bag.collations, images=False)
    assert bag_items(equal, names) == names
    assert (
        bag_hash(equal, names, "h")
        == "hash_record_extended(ROW(h, v0, v1, v2, v3, hashtextextended((v4)::text, 0)), 0)"
    )


def test_values_keep_their_collation() -> None:
    bag = Bag((0, 1), (TEXT, INT), ('pg_catalog."C"', None))
    assert value_definitions(bag) == ['v0 text COLLATE pg_catalog."C"', "v1 integer"]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Aggregate("max", "bag", False, (), None, "", bag=0), "ORDER BY b.v0 DESC LIMIT 1)"),
        (Aggregate("count", "bag", True, (), None, "", bag=0), "g.d0::int8"),
        (
            Aggregate("array_agg", "bag", False, (), None, "", bag=0, call="array_agg(b.v0)"),
            "ORDER BY b.vh) AS b, generate_series(1, b.n))",
        ),
        (Aggregate("bit_or", "bag", True, (), None, "", bag=0, call="bit_or(b.v0)"), "ORDER BY b.vh) AS b)"),
    ],
)
def test_the_value_of_a_group(aggregate: Aggregate, expected: str) -> None:
    bag = Bag((1,), (INT,), (None,))
    head = GroupHead((INT,), (None,), (aggregate,), (INT, INT), ("a0",), bags=(bag,))
    tables = StageTables("l", "r", "d", "t", "g", "o", "1_0")
    assert value_sql(head, 0, tables, "g").endswith(expected)
