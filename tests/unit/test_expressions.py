"""Helpers over scalar expressions, and how many digits they can have."""

from __future__ import annotations

import pytest
from sqlglot import exp, parse_one

from runnel.model.frontier import Frontier
from runnel.model.names import Name, quote
from runnel.model.types import PgType
from runnel.plan import expr as ex
from runnel.plan.numeric import bounds_of


def parse(text: str) -> exp.Expr:
    return parse_one(text, read="postgres")


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("l0.a + l1.b * 2", True),
        ("lower(l0.a) = 'x'", True),
        ("coalesce(l0.a, 0)", False),
        ("l0.a IS NULL", False),
        ("CASE WHEN l0.a > 1 THEN 1 ELSE 2 END", False),
        ("l0.a OR l0.b", False),
        ("my_function(l0.a)", False),
    ],
)
def test_strictness_is_claimed_only_when_certain(text: str, strict: bool) -> None:
    assert ex.is_strict(parse(text)) is strict


@pytest.mark.parametrize(
    ("text", "raises"),
    [
        ("a / b", True),
        ("a % b", True),
        ("a + b", False),
        ("a::int", True),
        ("a::text", False),
        ("'5'::int", False),
        ("my_function(a)", True),
        ("a::numeric(5,2)", True),
    ],
)
def test_what_may_raise_on_rows_a_join_would_drop(text: str, raises: bool) -> None:
    assert ex.may_raise(parse(text)) is raises


def test_leaves_and_conjuncts() -> None:
    assert ex.leaves_of(parse("l0.a + l12.b - l0.c + other.d")) == {0, 12}
    assert [c.sql() for c in ex.conjuncts(parse("(a AND (b AND c)) AND true AND (d OR e)"))] == [
        "a",
        "b",
        "c",
        "d OR e",
    ]
    assert list(ex.conjuncts(None)) == []


def test_rewrite_copies_and_replaces_the_highest_match() -> None:
    original = parse("f(a + 1) + a")
    changed = ex.rewrite(original, lambda n: exp.column("z") if isinstance(n, exp.Column) else None)
    assert changed.sql() == "F(z + 1) + z"
    assert original.sql() == "F(a + 1) + a"


@pytest.mark.parametrize(
    "text",
    [
        "a > now()",
        "a > CURRENT_DATE",
        "a > CURRENT_TIMESTAMP - '1 day'::interval",
        "localtimestamp > a",
        "transaction_timestamp() > a",
    ],
)
def test_clock_functions_become_a_placeholder(text: str) -> None:
    assert ex.mentions_clock(parse(text))
    replaced = ex.pg(ex.substitute_clock(parse(text)))
    assert ":clock" in replaced
    assert "CURRENT" not in replaced.upper()


def test_no_clock_is_seen_where_there_is_none() -> None:
    assert not ex.mentions_clock(parse("a > '2024-01-01'::timestamptz AND nowhere(b)"))


@pytest.mark.parametrize(
    ("condition", "negated"), [("a < b", "a >= b"), ("(a >= b)", "a < b"), ("a = b", "(a = b) IS NOT TRUE")]
)
def test_negations_can_use_an_index(condition: str, negated: str) -> None:
    assert ex.negation(parse(condition)) == negated


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("a", (15, 2)),
        ("a + a", (16, 2)),
        ("a * a", (30, 4)),
        ("a * (1 - a)", (31, 4)),
        ("-a", (15, 2)),
        ("1.5", (2, 1)),
        ("coalesce(a, 0)", (15, 2)),
        ("CASE WHEN x THEN a ELSE 0.125 END", (16, 3)),
        ("a::numeric(20,5)", (20, 5)),
        ("(1)::int", (10, 0)),
        ("a / 2", None),
        ("sqrt(a)", None),
        ("a + f(b)", None),
        ("CASE WHEN x THEN a ELSE b END", None),
    ],
)
def test_digits_of_arithmetic(text: str, bounds: tuple[int, int] | None) -> None:
    known = {"a": (15, 2)}
    assert bounds_of(parse(text), lambda c: known.get(c.name)) == bounds


def test_bounds_hold_for_the_largest_values() -> None:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        biggest = Decimal("9999999999999.99")
        for text, value in {
            "a + a": biggest + biggest,
            "a * a": biggest * biggest,
            "a * (1 - a)": biggest * (1 - biggest),
        }.items():
            found = bounds_of(parse(text), lambda c: (15, 2))
            assert found is not None
            precision, scale = found
            assert abs(value) < Decimal(10) ** (precision - scale), text
            assert value == round(value, scale), text


def test_types_know_their_digits() -> None:
    assert PgType(23, -1, "integer").bounds == (10, 0)
    assert PgType(1700, ((10 << 16) | 2) + 4, "numeric(10,2)").bounds == (10, 2)
    assert PgType(1700, -1, "numeric").bounds is None
    assert PgType(25, -1, "text").bounds is None
    assert PgType(16999, -1, "mood", is_enum=True).family == "enum"


def test_names_are_quoted_and_frontiers_survive_the_catalog() -> None:
    assert quote('a"b') == '"a""b"'
    assert Name("s", "T t").sql() == '"s"."T t"'
    assert str(Name("s", "t")) == "s.t"
    frontier = Frontier({"postgres": "1:2:", "stream_tables:3": 4}, "2024-01-01")
    assert Frontier.from_json(frontier.as_json()) == frontier
    assert Frontier.from_json(None) == Frontier()
