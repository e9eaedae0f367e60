"""Numbers in Spark as in PostgreSQL: results and the digits that they show."""

from __future__ import annotations

import random
import struct
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from runnel.model.types import Form
from runnel.spark.floats import float_text
from runnel.spark.session import Sessions
from tests.translate.compare import BOOL, DOUBLE, LONG, TEXT, Values, decimal_form, refused

INTS = [None, 0, 1, -1, 2, 3, -3, 7, -7, 10, 99, -100, 12345, 32767, -32768]
LARGE = [*INTS, 2**31 - 1, -(2**31), 10**12, -(10**12), 2**40]
MONEY = [None, *map(Decimal, (
    "0", "0.01", "-0.01", "0.05", "0.5", "-0.5", "1.5", "-1.5", "2.5", "-2.5", "1.45", "1.55", "99.99", "-99.99",
    "0.99", "100", "99999999.99", "-99999999.99", "12345.67",
))]  # fmt: skip
FINE = [None, *map(Decimal, (
    "0", "0.0001", "-0.0001", "0.00005", "0.5", "-0.5", "1.2345", "-1.2345", "0.0500", "0.04995", "99999999.9999",
    "-99999999.9999", "1", "-1", "3.1416",
))]  # fmt: skip
TINY = [None, *map(Decimal, ("0", "0.00000001", "-0.00000001", "0.5", "-0.49999999", "0.50000001", "99.99999999"))]
HUGE = [None, *map(Decimal, ("0", "1", "-1", "9" * 25, "-" + "9" * 25, "0.00001", "12345678901234567890.12345"))]
SINGLE = [None, 0.0, -0.0, 1.5, -1.5, 2.5, 0.25, 1e10, -1e-10, float("nan"), float("inf"), float("-inf"), 32767.5]
NORMAL = [x for x in SINGLE if x is None or abs(x) < 1e9]

VALUES = Values(
    {
        "s": ("smallint", pa.int16(), INTS),
        "i": ("integer", pa.int32(), INTS),
        "k": ("integer", pa.int32(), [1, -1, 2, 3, -7, 10, 1000]),
        "b": ("bigint", pa.int64(), LARGE),
        "n": ("numeric(10,2)", pa.decimal128(10, 2), MONEY),
        "m": ("numeric(14,4)", pa.decimal128(14, 4), [None if x is None else round(x, 4) for x in FINE]),
        "p": (
            "numeric(8,3)",
            pa.decimal128(8, 3),
            [Decimal(x) for x in ("1", "-1", "0.001", "2.5", "-7.125", "99999")],
        ),
        "z": ("numeric(10,8)", pa.decimal128(10, 8), TINY),
        "h": ("numeric(30,5)", pa.decimal128(30, 5), HUGE),
        "u": ("numeric(20,0)", pa.decimal128(20, 0), [None, Decimal(0), Decimal(2**64 - 1), Decimal(7)]),
        "nan": ("double precision", pa.float64(), [None, float("nan")]),
        "f": ("double precision", pa.float64(), SINGLE),
        "g": ("double precision", pa.float64(), NORMAL),
        "r": ("real", pa.float32(), NORMAL),
    }
)
INTEGERS = [
    "(i)::int8", "(s)::int8", "(-i)::int8", "(i + s)::int8", "(i - b)::int8", "(i * s)::int8", "(b / k)::int8",
    "(i / k)::int8", "(s / k)::int8", "(i % k)::int8", "(b % k)::int8", "mod(i, k)::int8", "abs(i)::int8",
    "abs(b)::int8", "(n)::int4::int8", "(m)::int8", "(z)::smallint::int8", "(u % 1000::numeric)::int8",
    "(g)::int4::int8", "(r)::int4::int8", "(g)::int8", "(i)::smallint::int8",
    "COALESCE(i, s, 0)::int8", "GREATEST(i, s, k)::int8", "LEAST(i, b)::int8", "nullif(i, k)::int8",
    "(CASE WHEN i > 0 THEN s ELSE k END)::int8", "(CASE i WHEN 1 THEN 10 WHEN 7 THEN 70 END)::int8",
    "(i IS DISTINCT FROM NULL)::int4::int8", "(round(n))::int8", "(n = 'NaN')::int4::int8",
]  # fmt: skip
TEXTS = [
    "(f)::text", "((f)::float8 + 0)::text", "(g)::text", "(f * 0.1::float8)::text", "(g / 3::float8)::text",
    "(n)::float8::text",
    "(COALESCE(f, 0::float8))::text", "(n)::text", "(m)::text", "(z)::text", "(h)::text", "(u)::text", "(b)::text",
    "(n + m)::text", "(n - m)::text",
    "(n * m)::text", "(m * z)::text", "(h * 2::numeric)::text", "(h + n)::text",
    "(n % p)::text", "mod(m, p)::text", "(h % p)::text", "(-n)::text", "abs(m)::text", "round(n)::text",
    "round(n, 1)::text", "round(m, 2)::text", "round(m, 6)::text", "round(z, 3)::text", "round(h, 0)::text",
    "round(n, -1)::text", "round(n, -3)::text", "trunc(n)::text", "trunc(m, 2)::text", "trunc(m, 6)::text",
    "trunc(n, -1)::text", "trunc(z, 4)::text", "ceil(n)::text", "ceiling(m)::text", "floor(n)::text",
    "floor(z)::text",
    "sign(n)::text", "sign(z)::text", "div(n, 3::numeric)::text", "div(h, 1000000)::text", "div(m, 0.07)::text",
    "(n)::numeric(12,1)::text", "(m)::numeric(12,2)::text", "(z)::numeric(6,3)::text", "(i)::numeric(20,2)::text",
    "(b)::numeric::text", "trim_scale(m)::text", "trim_scale((n)::numeric)::text", "trim_scale(h)::text",
    "trim_scale((u)::numeric)::text", "trim_scale((i)::numeric)::text", "COALESCE(n, 0::numeric)::text",
    "COALESCE(n, m)::text", "COALESCE(n, m, 0.5)::text", "(CASE WHEN i > 0 THEN n ELSE 0::numeric END)::text",
    "(CASE WHEN i > 0 THEN n WHEN i < 0 THEN m END)::text", "(CASE WHEN i > 0 THEN n * m ELSE 1.5 END)::text",
    "nullif(n, 0::numeric)::text", "nullif(n, m)::text", "(n * (1::numeric - m))::text", "(0.5 * (i)::numeric)::text",
    "(n > 0)::text", "trim_scale(COALESCE(n, m))::text", "trim_scale(GREATEST(n, m))::text",
    "trunc((n * m) * 1000000)::text", "mod(trunc((n * m) * 1000000), 10000000000000000000)::text",
    "div(trunc((n * m) * 1000000), 10000000000)::text", "div(trunc((n * m) * 1000000), 10000000000000000000)::text",
    "div(h, 10000000000000000000)::text", "div(h, 0.001)::text", "div(n, '-7'::numeric)::text",
]  # fmt: skip
DECIMALS: list[tuple[str, Form]] = [
    ("nullif((n)::numeric, 'NaN')", decimal_form(2)), ("(n * m)", decimal_form(6)),
    ("COALESCE(n, m)", decimal_form(4)),
    ("(CASE WHEN i > 0 THEN n ELSE 0::numeric END)::numeric", decimal_form(2)), ("GREATEST(n, m)", decimal_form(4)),
    ("LEAST(n, m, 1::numeric)", decimal_form(4)), ("(b)::numeric", decimal_form(0)),
    ("(COALESCE(n, m) * (1::numeric + z))", decimal_form(12)),
    ("(nullif((n)::numeric, 'NaN') * nullif((n)::numeric, 'NaN'))", decimal_form(4)),
    ("(n - COALESCE(m, 0::numeric))", decimal_form(4)), ("round(COALESCE(n, m), 1)", decimal_form(1)),
]  # fmt: skip
FLOATS = ["(f)::float8", "(r)::float8", "(i)::float8", "(b)::float8", "(n)::float8", "(h)::float8", "(z)::float8",
          "(-f)::float8", "(f + g)", "(f - g)", "(f * 2::float8)", "(g / 3::float8)", "(f / 4)", "(nan / g)",
          "(nan / 0::float8)", "(i + g)",
          "(g * r)", "(f - 0.1::float8)",
          "(CASE WHEN g > 0::float8 THEN f / g END)", "abs(f)::float8", "round(f)::float8", "((n)::real)::float8",
          "((i)::real)::float8",
          "(h * 3::numeric)::float8"]  # fmt: skip
CONDITIONS = [
    "i = ANY (ARRAY[k, 1 + 2, s])", "b <> ALL (ARRAY[(2 + 1)::bigint, (i)::bigint])", "n = ANY (ARRAY[m, 1.5, p])",
    "i > 3", "s < i", "b >= 7", "i = ANY (ARRAY[1, 7])", "i <> ALL (ARRAY[1, -7])", "i % 3 = 1", "i / 2 = 3",
    "(i + 1) * 2 > b", "i >= '-1'::integer AND i <= 7", "n > 5::numeric", "n = 1.5", "n >= m * 100::numeric",
    "n < '-0.005'::numeric",
    "n = ANY (ARRAY[1.50, 100::numeric])", "n <> ALL (ARRAY[1.5, 0.01])", "m + n > 1::numeric", "h = n", "n = m",
    "z <= n",
    "f > 0.25::float8", "f = 0::float8", "f = g", "f < g", "f >= r", "f <> g", "g = i", "i < g", "r = 2.5::float8",
    "f = ANY (ARRAY[0::float8, 1.5::float8])", "i IS DISTINCT FROM s", "n IS NOT DISTINCT FROM m",
    "f IS DISTINCT FROM g",
    "(i::numeric * n) > 10::numeric", "abs(n - m) > 0.5",
    "(CASE WHEN n <> 0::numeric THEN m % n ELSE NULL END) > 0::numeric",
    "nullif(i, 0) IS NULL", "round(n, 1) = n", "(i)::boolean", "b > '-3'::bigint", "s = '7'::smallint",
    "u > 9223372036854775807",
    "u = 18446744073709551615", "GREATEST(i, 3) = 3", "n IS NULL", "i IS NOT NULL",
]  # fmt: skip


@pytest.mark.slow
def test_numbers(db: psycopg.Connection, sessions: Sessions) -> None:
    expressions = [
        *((e, LONG) for e in INTEGERS), *((e, TEXT) for e in TEXTS), *DECIMALS, *((e, DOUBLE) for e in FLOATS),
        *((e, BOOL) for e in CONDITIONS),
    ]  # fmt: skip
    VALUES.check(db, sessions, expressions)


def test_what_statistics_know_leaves_room_for_products(db: psycopg.Connection, sessions: Sessions) -> None:
    narrow = Values({
        "a": ("numeric(15,2)", pa.decimal128(15, 2), [None, Decimal("0"), Decimal("104949.50"), Decimal("901.00")]),
        "b": ("numeric(15,2)", pa.decimal128(15, 2), [None, Decimal("0"), Decimal("0.10"), Decimal("0.05")]),
        "c": ("numeric(15,2)", pa.decimal128(15, 2), [None, Decimal("0"), Decimal("0.08")]),
        "i": ("integer", pa.int32(), [None, 1, -50]),
    })  # fmt: skip
    ranges = {
        "a": (Decimal(0), Decimal("104949.50")), "b": (Decimal(0), Decimal("0.10")),
        "c": (Decimal(0), Decimal("0.08")),
        "i": (-50, 1),
    }  # fmt: skip
    charge = "((a * (1::numeric - b)) * (1::numeric + c))"
    narrow.check(db, sessions, [
        (charge, decimal_form(6)), (f"{charge}::text", TEXT),
        (f"mod(trunc({charge} * 1000000), 10000000000000000000)", decimal_form(0)),
        (f"div(trunc({charge} * 1000000), 10000000000000000000)", decimal_form(0)),
        ("((i)::numeric * a)::text", TEXT),
        (f"div(trunc({charge} * 1000000), 1{'0' * 38})", decimal_form(0)),
        (f"mod(trunc({charge} * 1000000), 1{'0' * 38})::text", TEXT),
        ("(i * 3)::int8", LONG),
    ], ranges=ranges)  # fmt: skip
    db.execute("DROP TABLE v")
    assert refused(db, narrow, [charge]) == [], "without statistics the product has too many digits"


@pytest.mark.slow
def test_floats_as_text(db: psycopg.Connection) -> None:
    """Of all sizes, around powers of two, and with few digits: the very text that PostgreSQL prints."""
    chance = random.Random(1)
    values = [
        0.0,
        -0.0,
        1e23,
        1e22,
        5e-324,
        1.7976931348623157e308,
        1e15,
        1e14,
        1e-4,
        1e-5,
        1 / 3,
        float("nan"),
        float("inf"),
    ]
    values += [s * 2.0**k * f for k in range(-1074, 1023) for s in (1, -1) for f in (1, 1.0000000000000002)]
    values += [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(20_000)]
    values += [float(chance.getrandbits(chance.randrange(50, 70))) for _ in range(20_000)]
    values += [float(f"{chance.randrange(10**18)}e{chance.randrange(-330, 290)}") for _ in range(20_000)]
    values += [round(chance.uniform(-1e6, 1e6), chance.randrange(6)) for _ in range(5_000)]
    db.execute("CREATE TABLE floats (i int, x float8)")
    with db.cursor() as cursor, cursor.copy("COPY floats FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["int4", "float8"])
        for i, value in enumerate(values):
            copy.write_row((i, value))
    printed = db.execute("SELECT x::text FROM floats ORDER BY i").fetchall()
    different = [(v, float_text(v), text) for v, (text,) in zip(values, printed, strict=True) if float_text(v) != text]
    assert different == []


def test_numbers_that_only_postgresql_knows(db: psycopg.Connection) -> None:
    wrong = refused(db, VALUES, [
        "n / 2::numeric", "r + r", "r::text", "(CASE WHEN i > 0 THEN f END)::text || 'x'::text", "f % g",
        "f::numeric", "sqrt(f)",
        "power(f, 2::float8)",
        "ln(n)", "GREATEST(n, m)::text", "round(f::numeric, 2)", "h * h", "f::real", "n = f", "ceil(f)", "random()",
        "i & 1", "round(n, i)", "to_char(n, 'FM999'::text)",
        f"n > 1{'0' * 40}", f"n + 1{'0' * 40}", f"1{'0' * 40}::text", f"COALESCE(n, 1{'0' * 40})",
    ])  # fmt: skip
    assert wrong == []
