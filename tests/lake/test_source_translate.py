"""Expressions that Spark evaluates over lake tables: the same outcome as in PostgreSQL, or no translation."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from runnel.model.types import BOOL, LONG, TEXT, Column, Form, PgType, decimal_form
from runnel.plan.stage import Computed, Constant, Leaf
from runnel.spark.session import Sessions
from runnel.sparksql.translate import translate
from runnel.sql.describe import relation_columns

TABLE = """
CREATE TABLE v (s smallint, i integer, b bigint, n numeric(10,2), m numeric(12,4), z numeric(10,8), f double precision,
                t text, ok boolean, d date, ts timestamp, tz timestamptz, u uuid, j json)
"""
SMALL = [None, 0, 1, -1, 7, -7, 10, 32767]
TEXTS = [None, "", "a", "A", "ab", "it's", "100%", "_x", "é", "a\\b", "NaN", "0"]
DAYS = [None, *(dt.date(*d) for d in ((2024, 1, 1), (2024, 2, 29), (1, 1, 1), (9999, 12, 31), (1969, 12, 31)))]
TIMES = [
    None, dt.datetime(2024, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 45, 500000),
    dt.datetime(1969, 12, 31, 23, 59, 59, 1),
    dt.datetime(2024, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1),
]  # fmt: skip
NUMBERS = [
    None,
    Decimal("0"),
    Decimal("1.50"),
    Decimal("-0.01"),
    Decimal("99999999.99"),
    Decimal("100"),
    Decimal("-20.10"),
]


def rows() -> list[tuple[Any, ...]]:
    found = []
    for k in range(24):
        day, moment, number = DAYS[k % len(DAYS)], TIMES[k % len(TIMES)], NUMBERS[k % len(NUMBERS)]
        found.append((
            SMALL[k % len(SMALL)], SMALL[(k + 3) % len(SMALL)], SMALL[(k * 5 + 1) % len(SMALL)], number,
            None if number is None else number / 10000, None if k % 5 == 0 else Decimal(k - 9) / Decimal(10**8),
            None if k % 6 == 0 else (k - 9) / 4, TEXTS[k % len(TEXTS)], (None, True, False)[k % 3], day, moment,
            None if moment is None else moment.replace(tzinfo=dt.UTC),
            None if k % 7 == 0 else f"00000000-0000-4000-8000-{k:012d}",
            None if k % 4 == 0 else '{"a": 1.0}',
        ))  # fmt: skip
    return found


CONDITIONS = [
    "ok", "NOT ok", "ok IS TRUE", "ok IS NOT TRUE", "ok IS FALSE", "ok OR i > 0", "ok AND t = 'a'::text",
    "t = 'a'::text",
    "t <> 'it''s'::text", "t IS NULL", "t IS NOT NULL", "t = ANY (ARRAY['a'::text, 'ab'::text, 'a\\b'::text])",
    "t <> ALL (ARRAY['a'::text, ''::text])", "t LIKE 'a%'::text", "t LIKE '_'::text",
    "i > 3", "s < i", "b >= 7", "i = ANY (ARRAY[1, 7])", "i <> ALL (ARRAY[1, -7])", "i % 3 = 1", "i / 2 = 3",
    "(i + 1) * 2 > b",
    "i >= -1 AND i <= 7", "n > 5", "n = 1.5", "n >= m * 100", "n < -0.005", "n = ANY (ARRAY[1.50, 100])", "m + n > 1",
    "d >= '2024-01-01'::date", "d = '2024-02-29'::date", "d < '1970-01-01'::date",
    "ts >= '2024-01-01 00:00:00'::timestamp",
    "ts = '2024-02-29 12:30:45.5'::timestamp", "tz > '2000-01-01 00:00:00+00'::timestamptz", "ts::date = d",
    "d::timestamp <= ts",
    "f > 0.25::float8", "f = 0::float8", "i IS DISTINCT FROM s", "t IS DISTINCT FROM 'a'::text",
    "d IS NOT DISTINCT FROM ts::date",
    "u = '00000000-0000-4000-8000-000000000001'::uuid", "COALESCE(ok, false)",
    "CASE WHEN i > 0 THEN ok ELSE NULL END",
    "date_trunc('day', ts) = '2024-01-01 00:00:00'::timestamp", "EXTRACT(year FROM d) = 2024",
    "n IS NULL OR n = 0", "i + s = 8",
    "nullif(t, 'a'::text) IS NULL", "(i::numeric * n) > 10",
]  # fmt: skip
VALUES: list[tuple[str, Form]] = [
    ("(s)::int8", LONG), ("(i)::int8", LONG), ("(i % 7)::int8", LONG),
    ("((t) IS DISTINCT FROM NULL)::int4::int8", LONG),
    ("(ok)::int4::int8", LONG), ("(CASE WHEN ok THEN i END)::int8", LONG),
    ("((n)::numeric = 'NaN')::int4::int8", LONG),
    ("nullif((n)::numeric, 'NaN')", decimal_form(2)), ("(b)::numeric", decimal_form(0)),
    ("(n * 2)::numeric", decimal_form(2)),
    ("(nullif((n)::numeric, 'NaN') * nullif((n)::numeric, 'NaN'))", decimal_form(4)),
    ("((n + m))::numeric", decimal_form(4)),
    ("((1::numeric - m) * n)", decimal_form(6)), ("(CASE WHEN ok THEN n END)::numeric", decimal_form(2)),
    ("(COALESCE(i, 0))::int8", LONG), ("(-i)::int8", LONG), ("ok", BOOL), ("i > 2", BOOL),
    ("(t)::text", TEXT), ("(n)::text", TEXT), ("(m)::text", TEXT), ("(z)::text", TEXT), ("(n * m)::text", TEXT),
    ("(b)::text", TEXT),
    ("trim_scale((n)::numeric)::text", TEXT), ("trim_scale((m)::numeric)::text", TEXT),
    ("trim_scale((z)::numeric)::text", TEXT),
    ("trim_scale((i)::numeric)::text", TEXT), ("(ok)::text", TEXT), ("(d)::text", TEXT), ("((d)::date)::text", TEXT),
    ("((d)::timestamp)::text", TEXT), ("(ts)::text", TEXT), ("((ts)::date)::text", TEXT), ("(tz)::text", TEXT),
    ("(u)::text", TEXT),
    ("(j)::text", TEXT), ("(date_trunc('month', ts))::text", TEXT), ("(date_trunc('week', ts))::text", TEXT),
    ("(date_trunc('hour', tz))::text", TEXT), ("(EXTRACT(month FROM ts))::text", TEXT),
    ("(t || '-x'::text)::text", TEXT),
    ("(CASE WHEN i > 0 THEN 'p'::text ELSE t END)::text", TEXT), ("(COALESCE(t, 'none'::text))::text", TEXT),
]  # fmt: skip
REFUSED = [
    "t < 'b'::text", "lower(t) = 'a'::text", "f::text = '1'::text", "i / s = 1", "d = now()::date",
    "j::text::jsonb IS NULL",
    "length(t) > 1", "t LIKE 'a\\\\%'::text", "n / 2 > 1", "tz::date = d", "random() > 0.5", "n % 2 = 1", "d + 1 > d",
]  # fmt: skip


def over_leaf(text: str, columns: tuple[Column, ...]) -> str:
    """Plain column names as those of a leaf."""
    import re

    names = "|".join(c.name for c in columns)
    pieces = re.split(r"('(?:[^']|'')*')", text)
    return "".join(
        p if p.startswith("'") else re.sub(rf"(?<![\w.:]){{0}}\b({names})\b(?!\()", r'l0."\1"', p) for p in pieces
    )


@pytest.fixture
def columns(db: psycopg.Connection) -> tuple[Column, ...]:
    db.execute(TABLE)
    with db.cursor() as cursor:
        cursor.executemany("INSERT INTO v VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", rows())
    row = db.execute("SELECT 'v'::regclass::oid::int8").fetchone()
    assert row is not None
    return relation_columns(db, row[0])


def leaf_of(filters: tuple[str, ...] = (), computed: tuple[Computed, ...] = ()) -> Leaf:
    return Leaf(0, Constant("SELECT", ()), filters=filters, computed=computed)


def test_same_outcome_as_postgresql(columns: tuple[Column, ...], db: psycopg.Connection, sessions: Sessions) -> None:
    db.execute("SET TimeZone = 'UTC'")
    settings = {"TimeZone": "UTC", "DateStyle": "ISO, MDY"}
    any_type = PgType(25, -1, "text")
    conditions = [over_leaf(c, columns) for c in CONDITIONS]
    values = [(over_leaf(v, columns), form) for v, form in VALUES]
    computed = tuple(
        [Computed(c, BOOL, any_type) for c in conditions] + [Computed(v, form, any_type) for v, form in values]
    )
    assert [c.sql for c in computed if translate(leaf_of(computed=(c,)), columns, settings) is None] == []
    translated = translate(leaf_of(computed=computed), columns, settings)
    assert translated is not None
    items = ", ".join(f"({c.sql})::text" for c in computed)
    expected = db.execute(f"SELECT {items} FROM v AS l0 ORDER BY (l0.*)::text".encode()).fetchall()
    frame = sessions.large.createDataFrame(table(db))
    found = [tuple(r) for r in frame.selectExpr(*translated.columns, "place").orderBy("place").collect()]
    different = [
        (each.sql, ours, right)
        for mine, theirs in zip(found, expected, strict=True)
        for each, ours, right in zip(computed, mine, theirs, strict=False)
        if as_postgres(ours, each.form) != as_number(right, each.form)
    ]
    assert different == []


def as_postgres(value: Any, form: Form) -> Any:
    if value is None:
        return None
    return ("true" if value else "false") if form.kind == "bool" else value if form.kind != "long" else int(value)


def as_number(text: Any, form: Form) -> Any:
    if text is None or form.kind in ("text", "bool"):
        return text
    return int(text) if form.kind == "long" else Decimal(text)


def table(db: psycopg.Connection) -> pa.Table:
    """The rows as a lake's reader gives them to Spark, with their place in PostgreSQL's order."""
    types = [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(10, 2), pa.decimal128(12, 4),
    pa.decimal128(10, 8), pa.float64(),
             pa.string(), pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
             pa.string(), pa.string()]  # fmt: skip
    names = ["s", "i", "b", "n", "m", "z", "f", "t", "ok", "d", "ts", "tz", "u", "j"]
    items = ", ".join(f"{n}::text" if n in ("u", "j") else n for n in names)
    found = db.execute(f"SELECT {items} FROM v AS l0 ORDER BY (l0.*)::text".encode()).fetchall()
    arrays = [pa.array([r[i] for r in found], t) for i, t in enumerate(types)]
    return pa.table([*arrays, pa.array(range(len(found)))], names=[*names, "place"])


def test_what_is_left_to_postgresql(columns: tuple[Column, ...]) -> None:
    utc = {"TimeZone": "UTC", "DateStyle": "ISO, MDY"}
    for text in REFUSED:
        assert translate(leaf_of(filters=(over_leaf(text, columns),)), columns, utc) is None, text
    shown = leaf_of(computed=(Computed('(l0."tz")::text', TEXT, PgType(25, -1, "text")),))
    assert translate(shown, columns, utc) is not None
    assert translate(shown, columns, {"TimeZone": "Europe/Berlin"}) is None
    assert translate(shown, columns, {"TimeZone": "UTC", "DateStyle": "German"}) is None
