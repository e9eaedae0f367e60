"""The SELECTs that read leaves, word for word."""

from __future__ import annotations

import pytest

from runnel.model.names import Name
from runnel.model.types import LONG, TEXT, PgType
from runnel.plan.stage import Computed, Leaf, Relation
from runnel.ports.rows import Clock, Restriction
from runnel.sources.statements import (
    after_query,
    delta_query,
    log_buffer,
    no_changes,
    stage_buffer,
    table_buffer,
)

INT = PgType(23, -1, "integer")
RELATION = Relation(100, Name("public", "orders"), ())
LEAF = Leaf(
    0,
    RELATION,
    filters=("l0.status <> 'x%'",),
    computed=(Computed("l0.id", LONG, INT), Computed("upper(l0.s)", TEXT, PgType(25, -1, "text"))),
    uses=("id", "s", "status"),
)
CLOCK = Clock("2024-01-01", "2024-01-02")
ORDERS = '"public"."orders"'


def test_a_table_now() -> None:
    query = after_query(LEAF, ORDERS, CLOCK)
    assert query.text == (
        'SELECT l0.id AS l0_0, upper(l0.s) AS l0_1 FROM "public"."orders" AS l0 WHERE (l0.status <> \'x%%\')'
    )
    assert query.params == {}


def test_a_table_now_under_some_keys() -> None:
    query = after_query(LEAF, ORDERS, CLOCK, restriction=Restriction("l0.id", "int8", (1, 22), include_null=True))
    assert query.text.endswith(" AND ((l0.id) = ANY(%(keys)s::text[]::int8[]) OR (l0.id) IS NULL)")
    assert query.params == {"keys": '{"1","22"}'}


@pytest.mark.parametrize(
    ("values", "written"),
    [((True, False), '{"t","f"}'), (("a", 'b "c"', "d\\e"), '{"a","b \\"c\\"","d\\\\e"}'), ((), "{}")],
)
def test_how_keys_are_written(values: tuple[object, ...], written: str) -> None:
    query = after_query(LEAF, ORDERS, CLOCK, restriction=Restriction("l0.id", "text", values))
    assert query.params == {"keys": written}


def test_keys_with_their_multiplicity() -> None:
    query = after_query(LEAF, ORDERS, CLOCK, keys=[0])
    assert query.text.startswith("SELECT l0.id AS l0_0, count(*) AS w FROM")
    assert query.text.endswith("GROUP BY l0_0")


def test_a_leaf_that_needs_no_columns_still_has_rows() -> None:
    assert after_query(Leaf(3, RELATION), ORDERS, CLOCK).text == (
        'SELECT NULL::bool AS nothing FROM "public"."orders" AS l3'
    )


def test_captured_changes_since_a_snapshot() -> None:
    buffer = table_buffer("pgtrickle_changes.changes_100", {"s": 3, "id": 1}, "10:12:")
    assert buffer.sql == (
        'SELECT pgt_w AS "#w", c1 AS "id", c3 AS "s" FROM pgtrickle_changes.changes_100 AS r '
        "WHERE pgt_w <> 0 AND NOT pg_visible_in_snapshot(pgt_xid, %(frontier)s::pg_snapshot)"
    )
    assert buffer.params == {"frontier": "10:12:"}
    assert table_buffer("pgtrickle_changes.changes_100", {}, "1:1:").sql.startswith('SELECT pgt_w AS "#w" FROM')


def test_captured_changes_are_netted_first_where_an_expression_may_raise() -> None:
    columns, textual = {"s": 3, "j": 1}, frozenset({"j"})
    buffer = table_buffer("pgtrickle_changes.changes_100", columns, "10:12:", netted=True, textual=textual)
    assert buffer.sql == (
        'SELECT sum(pgt_w) AS "#w", (array_agg(c1))[1] AS "j", c3 AS "s" FROM pgtrickle_changes.changes_100 AS r '
        "WHERE pgt_w <> 0 AND NOT pg_visible_in_snapshot(pgt_xid, %(frontier)s::pg_snapshot) "
        "GROUP BY c1::text, c3 HAVING sum(pgt_w) <> 0"
    )


def test_changes_of_stream_tables_and_stages() -> None:
    log = log_buffer(7, {"a": 0, 'b"c': 1}, 3, 5)
    assert log.sql == (
        'SELECT pgt_w AS "#w", o0 AS "a", o1 AS "b""c" FROM pgtrickle_changes.log_7 AS r '
        "WHERE pgt_version > %(after)s AND pgt_version <= %(upto)s"
    )
    assert log.params == {"after": 3, "upto": 5}
    assert stage_buffer("pg_temp.d", ["a"]).sql == 'SELECT w AS "#w", o0 AS "a" FROM pg_temp.d'


def test_logged_changes_are_netted_first_where_an_expression_may_raise() -> None:
    log = log_buffer(7, {"j": 0, "s": 2}, 3, 5, netted=True, textual=frozenset({"j"}))
    assert log.sql == (
        'SELECT sum(pgt_w) AS "#w", (array_agg(o0))[1] AS "j", o2 AS "s" FROM pgtrickle_changes.log_7 AS r '
        "WHERE pgt_version > %(after)s AND pgt_version <= %(upto)s "
        "GROUP BY o0::text, o2 HAVING sum(pgt_w) <> 0"
    )


def test_what_never_changes_has_the_columns_of_its_relation() -> None:
    assert no_changes("(SELECT '%')").sql == "SELECT 0::int8 AS \"#w\", r.* FROM (SELECT '%%') AS r WHERE false"


def test_percent_signs_are_doubled_wherever_they_come_from() -> None:
    assert '"50%%"' in table_buffer("pgtrickle_changes.changes_1", {"50%": 1}, "1:1:").sql
    assert '"t%%"' in after_query(LEAF, '"t%"', CLOCK).text


def test_a_delta_is_netted() -> None:
    query = delta_query(LEAF, stage_buffer("d", ["id"]), ORDERS, CLOCK)
    assert query.text.endswith("GROUP BY l0_0, l0_1 HAVING sum(w) <> 0")
    assert "UNION ALL" not in query.text
    assert delta_query(Leaf(3, RELATION), stage_buffer("d", ["id"]), ORDERS, CLOCK).text.endswith(
        "AS d HAVING sum(w) <> 0"
    )


def test_the_clock_moves_rows_in_and_out() -> None:
    leaf = Leaf(
        0,
        RELATION,
        clock_filters=("l0.at > :clock",),
        clock_negations=("l0.at <= :clock",),
        computed=(Computed("l0.id", LONG, INT),),
    )
    query = delta_query(leaf, stage_buffer("d", ["id", "at"]), ORDERS, CLOCK)
    changes, entering, leaving = query.text.split(" UNION ALL ")
    assert "(l0.at > %(before)s::timestamptz)" in changes
    assert "1 AS w" in entering
    assert "(l0.at > %(now)s::timestamptz) AND (l0.at <= %(before)s::timestamptz)" in entering
    assert "-1 AS w" in leaving
    assert "(l0.at > %(before)s::timestamptz) AND (l0.at <= %(now)s::timestamptz)" in leaving
    assert (query.params["before"], query.params["now"]) == ("2024-01-01", "2024-01-02")
    assert after_query(leaf, ORDERS, CLOCK).params == {"now": "2024-01-02"}
