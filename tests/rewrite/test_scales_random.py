"""Digits that are claimed of a result are never too few: PostgreSQL's own values are the judge."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from runnel.engine.registry import known_scales
from runnel.server.embedded import EmbeddedServer
from runnel.sql.compile import compile_query
from tests.conftest import TEMPLATE

DATABASE = "scales"
TABLES = """
CREATE DOMAIN price AS numeric(9,3);
CREATE TABLE p (id int PRIMARY KEY, n2 numeric(10,2), n4 numeric(8,4), free numeric, i int, b bigint, f float8, t text,
                d price, at timestamp, neg numeric(6,-2), tiny numeric(2,5));
CREATE TABLE q (id int, n2 numeric(12,6), z numeric(5,1), b smallint);
CREATE VIEW v AS SELECT p.id, sum(p.n2 * q.z) AS total, max(q.n2) AS n2 FROM p JOIN q ON q.id = p.id GROUP BY p.id;
INSERT INTO p SELECT g, g * 1.37, g / 7.0, g / 3.0 * 1e-9, g, g * 3, g / 3.0, (g / 11.0)::text, g * 0.123,
    '2024-01-01 00:00:00.123456'::timestamp + g * interval '1.000001 s', g * 137, g * 0.00001
    FROM generate_series(-4, 9) g;
INSERT INTO p (id) VALUES (99);
INSERT INTO q SELECT g % 6, g * 0.123457, g * 0.3, g FROM generate_series(1, 12) g;
INSERT INTO q VALUES (NULL, 1.000001, NULL, 2), (50, NULL, 0.5, NULL)
"""

_COLUMNS = st.sampled_from(
    ["p.n2", "p.n4", "p.free", "p.i", "p.b", "p.f", "p.t", "p.d", "p.neg", "p.tiny", "q.n2", "q.z"]
)
_NUMBERS = st.sampled_from(["1", "0.5", "-1.25", "3.000", "NULL::numeric", "'2.125'::numeric", "1e-7"])
_SOURCES = st.sampled_from(
    [
        "p JOIN q ON q.id = p.id",
        "p LEFT JOIN q USING (id)",
        "q FULL JOIN p USING (id)",
        "(p CROSS JOIN (SELECT * FROM q WHERE b < 4) q)",
        "p JOIN (SELECT id, n2 * z AS n2, z FROM q UNION ALL SELECT id, n4, 0.75 FROM p) q ON q.id = p.id",
        "p JOIN (SELECT id, total AS n2, n2 AS z FROM v) q ON q.id = p.id",
        "p CROSS JOIN LATERAL (SELECT p.n4 + x.n2 AS n2, max(x.z) OVER () AS z FROM q x WHERE x.id = p.id) q",
        "(VALUES (1, 1.5, 0.125), (2, -2.25, NULL)) q (id, n2, z) JOIN p ON p.id = q.id",
        "(SELECT i AS id, d AS n2, n4 AS n4, n2 AS free, n4 AS i, b, f, t, tiny AS d, at, neg, n4 AS tiny FROM p) AS p "
        "JOIN q AS q (id, z, n2) ON q.id IS NOT DISTINCT FROM p.b",
    ]
)


def _numeric(text: str) -> str:
    return f"({text})::numeric"


def _expressions() -> st.SearchStrategy[str]:
    leaves = (_COLUMNS | _NUMBERS).map(_numeric)

    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(inner, inner).map(lambda t: f"({t[0]} / NULLIF({t[1]}, 0))"),
            st.tuples(inner, inner).map(lambda t: f"mod({t[0]}, NULLIF({t[1]}, 0))"),
            st.tuples(inner, inner).map(lambda t: f"CASE WHEN p.i > 3 THEN {t[0]} ELSE {t[1]} END"),
            st.tuples(st.sampled_from(["coalesce", "nullif", "greatest", "least"]), inner, inner).map(
                lambda t: f"{t[0]}({t[1]}, {t[2]})"
            ),
            st.tuples(
                st.sampled_from(["abs", "-", "ceil", "floor", "round", "trunc", "sign", "sqrt(abs", "trim_scale"]),
                inner,
            ).map(lambda t: f"{t[0]}({t[1]}){')' * t[0].count('(')}"),
            st.tuples(st.sampled_from(["round", "trunc"]), inner, st.sampled_from(["0", "2", "-1", "p.id"])).map(
                lambda t: f"{t[0]}({t[1]}, {t[2]})"
            ),
            st.tuples(inner, st.sampled_from(["numeric(20,3)", "numeric(20)", "bigint", "float8", "text"])).map(
                lambda t: f"({t[0]})::{t[1]}::numeric"
            ),
            st.sampled_from(["epoch", "second", "year", "milliseconds", "julian"]).map(
                lambda f: f"extract({f} FROM p.at)"
            ),
            inner.map(lambda e: f"(SELECT max({e} * s.z) FROM q s WHERE s.b < 3)"),
        )

    return st.recursive(leaves, more, max_leaves=5)


_AGGREGATES = ("sum", "min", "max", "any_value", "avg", "variance", "sum(DISTINCT", "percentile")
_WINDOWS = (
    "sum({}) OVER (ORDER BY p.id)",
    "lag({}, 1, 0.0625) OVER (ORDER BY p.id)",
    "first_value({}) OVER (PARTITION BY q.z)",
)


def _call(name: str, argument: str) -> str:
    if name == "percentile":
        return f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {argument})"
    return f"{name} {argument})" if name.endswith("DISTINCT") else f"{name}({argument})"


@st.composite
def _queries(draw: st.DrawFn) -> str:
    items = draw(st.lists(_expressions(), min_size=1, max_size=3))
    match draw(st.sampled_from(["rows", "groups", "windows"])):
        case "groups":
            items = [_call(draw(st.sampled_from(_AGGREGATES)), e) for e in items]
            rest = " GROUP BY p.t"
        case "windows":
            items, rest = [draw(st.sampled_from(_WINDOWS)).format(e) for e in items], ""
        case _:
            rest = ""
    shown = ", ".join(f"{e} AS c{i}" for i, e in enumerate(items))
    query = f"SELECT {shown} FROM {draw(_SOURCES)}{rest}"
    wrapped = draw(
        st.sampled_from(["{}", "WITH w AS ({}) SELECT * FROM w", "SELECT s.* FROM ({}) s, q", "{} UNION {}"])
    )
    return wrapped.replace("{}", query)


@pytest.fixture(scope="module")
def numbers(server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """Tables of numbers of every kind."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {TEMPLATE}".encode())
    with psycopg.connect(make_conninfo(server.dsn, dbname=DATABASE), autocommit=True) as conn:
        conn.execute(TABLES.encode())
        yield conn
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {DATABASE} WITH (FORCE)".encode())


@pytest.mark.slow
def test_no_value_has_more_digits_than_claimed(numbers: psycopg.Connection) -> None:
    claimed: list[str] = []

    @settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(_queries())
    def judge(query: str) -> None:
        try:
            compiled = compile_query(numbers, query, settings={"search_path": "public"})
        except Exception as error:
            assert "cannot be implemented" in str(error) or "FULL JOIN" in str(error), (query, error)
            return
        scales = known_scales(compiled, {})
        for column, digits in scales.items():
            claimed.append(column)
            row = numbers.execute(f"SELECT max(min_scale({column})) FROM ({query}) x".encode()).fetchone()
            assert row is not None and (row[0] is None or row[0] <= digits), (query, column, digits, row[0])

    judge()
    # A reader that knows nothing would never be wrong.
    assert len(claimed) > 60


@pytest.mark.parametrize(
    ("query", "digits"),
    [
        ("SELECT q.z, sum(p.n2) AS c0, max(p.d) AS c1 FROM p JOIN q ON q.id = p.id GROUP BY 1", {"c0": 2}),
        ("SELECT v.total AS c0, v.n2 AS c1 FROM v JOIN p USING (id)", {"c0": 3, "c1": 6}),
        ("SELECT sum(p.i * q.n2) AS c0 FROM p, q WHERE p.id = q.id", {"c0": 6}),
    ],
)
def test_digits_of_joins_and_views_are_known(numbers: psycopg.Connection, query: str, digits: dict[str, int]) -> None:
    found = known_scales(compile_query(numbers, query, settings={"search_path": "public"}), {})
    assert {k: found.get(k) for k in digits} == digits
