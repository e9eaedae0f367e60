"""Dates and timestamps in Spark as in PostgreSQL, long ago, far ahead, and infinite."""

from __future__ import annotations

import datetime as dt

import psycopg
import pyarrow as pa
import pytest

from runnel.spark.session import Sessions
from runnel.sparksql.translate import Around, Translation, translate
from tests.translate.compare import BOOL, DOUBLE, LONG, TEXT, UTC, Values, leaf_of, refused

DAY = 86_400_000_000
FORMER = [  # days since 1970 of dates around which calendars go wrong
    -719_162, -719_163, -719_528, -1_000_000, -2_000_000, -141_428, -141_427, -25_567, -1, 0, 1, 11_016, 19_782, 20_088,
    2_932_896, 2_932_897, 5_000_000,
]  # fmt: skip
USUAL = [(dt.date(*d) - dt.date(1970, 1, 1)).days for d in (
    (2024, 1, 31), (2024, 2, 29), (2023, 2, 28), (1900, 2, 28), (2000, 12, 31), (2021, 1, 3), (2020, 12, 28),
    (1582, 10, 4),
    (1582, 10, 15), (1969, 12, 31), (1, 1, 1), (9999, 12, 31), (1992, 3, 1), (1998, 12, 1),
)]  # fmt: skip
INFINITE = [2**31 - 1, -(2**31 - 1)]
CLOCKS = [
    0,
    1,
    59_123_457,
    999_999,
    1_000_000,
    59_999_999,
    3_600_000_000,
    45_296_500_000,
    86_399_999_999,
    43_200_000_000 + 123_400,
]
STAMPS = [d * DAY + c for d, c in zip([*FORMER, *USUAL], CLOCKS * 9, strict=False)]
ENDLESS = [2**63 - 1, -(2**63 - 1)]

FINITE = Values(
    {
        "d": ("date", pa.date32(), [None, *FORMER, *USUAL]),
        "e": ("date", pa.date32(), [None, *USUAL]),
        "ts": ("timestamp", pa.timestamp("us"), [None, *STAMPS]),
        "tt": ("timestamp", pa.timestamp("us"), [None, *STAMPS[::3]]),
        "tz": ("timestamptz", pa.timestamp("us", tz="UTC"), [None, *STAMPS]),
        "i": ("integer", pa.int32(), [None, 0, 1, -1, 30, -365]),
    }
)
ALL = Values({
    name: (pg, kind, values if name == "i" else [*values, *(INFINITE if name in "de" else ENDLESS)])
    for name, (pg, kind, values) in FINITE.columns.items()
})  # fmt: skip
PARTS = ["year", "quarter", "month", "day", "week", "doy", "dow", "isodow", "isoyear"]
CLOCK_PARTS = ["hour", "minute", "second", "milliseconds", "microseconds"]
UNITS = ["milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year"]
SPANS = ["1 day", "-30 days", "90 days", "1 mon", "-1 mons", "3 mons", "1 year", "-10 years", "1 mon 1 day",
         "01:30:00", "-00:00:00.5", "1 year 2 mons -3 days +04:05:06.789"]  # fmt: skip
SHOWN = [
    "(d)::text", "(ts)::text", "(tz)::text", "((d)::timestamp)::text", "((d)::timestamptz)::text",
    "((ts)::date)::text",
    "((tz)::date)::text", "((tz)::timestamp)::text", "((ts)::timestamptz)::text", "(d + 30)::text", "(d - 365)::text",
    "(d + i)::text", "(d - i)::text", "(i + d)::text", "(tz AT TIME ZONE 'UTC'::text)::text",
    "(ts AT TIME ZONE 'UTC'::text)::text",
    "COALESCE(d, e)::text", "(CASE WHEN d < e THEN ts ELSE tt END)::text", "GREATEST(d, e)::text",
    "LEAST(ts, tt)::text",
    "nullif(d, e)::text", "('x'::text || d)",
    *(f"(date_trunc('{u}'::text, ts))::text" for u in UNITS),
    *(f"(date_trunc('{u}'::text, tz))::text" for u in UNITS),
    "(date_trunc('month'::text, (d)::timestamptz))::text",
    *(f"({c} + '{s}'::interval)::text" for c in ("d", "ts", "tz") for s in SPANS), "(ts - '1 mon'::interval)::text",
    "(d - '90 days'::interval)::text", "('1 day'::interval + ts)::text",
]  # fmt: skip
ENDLESS = ["year", "isoyear", "epoch"]
"""Parts that are infinite of infinity, which Spark's numbers cannot be."""
EXTRACTED = [
    *(f"(EXTRACT({p} FROM {c}))::text" for p in PARTS if p not in ENDLESS for c in ("d", "ts", "tz")),
    *(f"(EXTRACT({p} FROM {c}))::text" for p in CLOCK_PARTS for c in ("ts", "tz")),
    *(f"(CASE WHEN isfinite({c}) THEN EXTRACT({p} FROM {c}) END)::text" for p in ENDLESS for c in ("d", "ts", "tz")),
    "(CASE WHEN isfinite(d) THEN (EXTRACT(year FROM d) * 100::numeric) + EXTRACT(month FROM d) END)::text",
]  # fmt: skip
PARTED = [
    *(f"date_part('{p}'::text, {c})" for p in [*PARTS, *CLOCK_PARTS, "epoch"] for c in ("d", "ts", "tz")),
]
INSTANT = (
    "CASE WHEN isfinite({e}) THEN (extract(epoch FROM {e}) * 1000000)::int8 "
    "WHEN {e} > '2000-01-01' THEN 9223372036854775807 WHEN {e} < '2000-01-01' THEN -9223372036854775808 END"
)
COUNTED = [
    "(d - e)::int8",
    "(e - d)::int8",
    "(EXTRACT(day FROM (ts - tt)))::int8",
    *(INSTANT.replace("{e}", f"(({c})::timestamp)") for c in ("d", "ts")),
]
CONDITIONS = [
    "d >= '2024-01-01'::date", "d = '2024-02-29'::date", "d < '1970-01-01'::date", "d < e", "d = e",
    "d IS DISTINCT FROM e",
    "ts >= '2024-01-01 00:00:00'::timestamp", "ts = '2024-02-29 12:30:45.5'::timestamp", "ts < tt", "ts <= d",
    "d < ts", "tz > ts",
    "tz >= d", "tz > '2000-01-01 00:00:00+00'::timestamptz", "(ts)::date = d", "(d)::timestamp <= ts",
    "isfinite(d)", "isfinite(ts)",
    "d = ANY (ARRAY['2024-02-29'::date, '1970-01-01'::date])",
    "d >= '1994-01-01'::date AND d < ('1994-01-01'::date + '1 year'::interval)",
    "(d + '1 mon'::interval) > e", "(date_trunc('day'::text, ts)) = ts",
]  # fmt: skip
SPANNED = [
    "(ts - tt) > '3 days'::interval",
    "(ts - tt) <= '1 mon'::interval",
    "(tz - tz) = '00:00:00'::interval",
    "(ts - d) > '01:00:00'::interval",
]


@pytest.mark.slow
def test_moments(db: psycopg.Connection, sessions: Sessions) -> None:
    FINITE.check(db, sessions, [
        *((e, TEXT) for e in [*SHOWN, *EXTRACTED]), *((e, DOUBLE) for e in PARTED), *((e, LONG) for e in COUNTED),
        *((e, BOOL) for e in [*CONDITIONS, *SPANNED]), ("(EXTRACT(epoch FROM (ts - tt)))::text", TEXT),
        ("(EXTRACT(day FROM (ts - tt)))::text", TEXT),
    ])  # fmt: skip


@pytest.mark.slow
def test_infinity(db: psycopg.Connection, sessions: Sessions) -> None:
    ALL.check(db, sessions, [
        *((e, TEXT) for e in [*SHOWN, *EXTRACTED]),
        *((e, DOUBLE) for e in PARTED), *((e, LONG) for e in COUNTED[3:]), *((e, BOOL) for e in CONDITIONS),
    ])  # fmt: skip


def test_what_statistics_know_saves_questions(db: psycopg.Connection, sessions: Sessions) -> None:
    """Dates that are known to be ordinary need no look at infinity, and come out the same."""
    ordinary = Values({
        "d": ("date", pa.date32(), [None, *USUAL]),
        "ts": ("timestamp", pa.timestamp("us"), [None, *(u * DAY + 5 for u in USUAL)]),
    })  # fmt: skip
    ranges = {"d": (dt.date(1, 1, 1), dt.date(9999, 12, 31)), "ts": (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))}
    shown = ["(d)::text", "(ts)::text", "((d)::timestamp)::text", "(EXTRACT(year FROM d))::text",
    "(d + '1 mon'::interval)::text",
             "(date_trunc('year'::text, ts))::text"]  # fmt: skip
    ordinary.check(db, sessions, [(e, TEXT) for e in shown], ranges=ranges)
    row = db.execute("SELECT 'v'::regclass::oid::int8").fetchone()
    assert row is not None
    from runnel.sql.describe import relation_columns

    found = translate(
        leaf_of(("(EXTRACT(year FROM l0.d) = 2024)",)), relation_columns(db, row[0]), Around(UTC, ranges=ranges)
    )
    assert isinstance(found, Translation)
    assert "raise_error" not in found.filters[0]


def test_moments_that_only_postgresql_knows(db: psycopg.Connection) -> None:
    dates = ["d = now()::date", "to_char(d, 'YYYY'::text)", "age(ts, tt)", "(ts - tt)::text",
    "date_trunc('century'::text, ts)",
             "EXTRACT(century FROM d)", "EXTRACT(hour FROM d)", "make_date(2024, i, 1)", "d + ts::time",
             "tz AT TIME ZONE 'Europe/Berlin'::text", "ts + (i * '1 day'::interval)", "(ts)::timestamp(0)",
             "date_part('epoch'::text, ts - tt)"]  # fmt: skip
    dates += [f"EXTRACT({part} FROM d)" for part in ENDLESS]
    assert refused(db, FINITE, dates) == []
    db.execute("DROP TABLE v")
    elsewhere = ["(tz)::text", "(tz)::date", "date_trunc('day'::text, tz)", "EXTRACT(hour FROM tz)",
    "(ts)::timestamptz", "tz > ts",
                 "(tz + '1 day'::interval) IS NULL", "(d)::timestamptz"]  # fmt: skip
    assert refused(db, FINITE, elsewhere, settings={"TimeZone": "Europe/Berlin"}) == []
    db.execute("DROP TABLE v")
    assert refused(db, FINITE, ["(d)::text", "(ts)::text"], settings={"TimeZone": "UTC", "DateStyle": "German"}) == []
