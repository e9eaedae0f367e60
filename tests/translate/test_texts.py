"""Text in Spark as in PostgreSQL: characters, not bytes."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest

from runnel.spark.session import Sessions
from tests.translate.compare import BOOL, LONG, TEXT, Values, refused

WORDS = [
    None, "", " ", "  ", "a", "A", "ab", "abc", "abcabc", " a ", "  padded  ", "it's", "100%", "_x", "é", "éa",
    "日本語",
    "a日b", "😀", "a😀b", "a\\b", "a\nb", "\tx\t", "NaN", "0", "a,b,,c", ",", "xyxaxy", "ß", "İ", "e\u0301",
    "\u00a0x\u00a0",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "Zz", "zZ", "ｚ", "~",
]  # fmt: skip
VALUES = Values(
    {
        "t": ("text", pa.string(), WORDS),
        "q": ("text", pa.string(), [None, "", "a", "b", "ab", "日", "😀", ",", " ", "abc"]),
        "i": ("integer", pa.int32(), [None, 0, 1, 2, 3, -1, -2, 5, 100, 2**31 - 1, -(2**31)]),
        "n": ("integer", pa.int32(), [None, 0, 1, 2, 5, 100, 2**31 - 1]),
        "ok": ("boolean", pa.bool_(), [None, True, False]),
        "u": (
            "uuid", pa.string(),
            [None, "00000000-0000-4000-8000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "0a000000-0000-4000-8000-00000000000a"],
        ),
        "w": ("uuid", pa.string(), [None, "00000000-0000-4000-8000-000000000001",
        "0a000000-0000-4000-8000-00000000000a"]),
        "j": ("json", pa.string(), [None, '{"a": 1.0}', "[]", '"é"']),
        "y": ("bytea", pa.binary(), [None, b"", b"\x00\xff", b"abc"]),
    }
)  # fmt: skip
SHOWN = [
    "(t)::text", "(t)::varchar", "(t)::varchar(3)", "((t)::char(3))::text", "((t)::char(1))::text", "(u)::text",
    "(j)::text", "(y)::text", "(ok)::text", "(t || '-x'::text)", "(t || q)", "(i || t)", "(t || ok)", "(t || u)",
    "substr(t, 2)", "substr(t, 1, 2)", "substr(t, 0, 3)", "substr(t, '-1'::integer, 3)", "substr(t, 3, 0)",
    "substr(t, i)",
    "substr(t, i, n)", "SUBSTRING(t FROM 2 FOR 3)", "SUBSTRING(t FROM 2)", '"substring"(t, 1, 5)',
    '"left"(t, 2)', '"left"(t, 0)', '"left"(t, \'-1\'::integer)', '"right"(t, 2)', '"right"(t, 0)',
    '"right"(t, \'-2\'::integer)',
    "btrim(t)", "ltrim(t)", "rtrim(t)", "btrim(t, 'xy'::text)", "ltrim(t, 'a日'::text)", "TRIM(BOTH FROM t)",
    "TRIM(LEADING FROM t)", "TRIM(TRAILING FROM t)", "TRIM(BOTH 'a'::text FROM t)",
    "TRIM(TRAILING 'bc'::text FROM t)",
    "replace(t, 'a'::text, 'xx'::text)", "replace(t, q, '-'::text)", "replace(t, q, q)",
    "replace(t, 'a'::text, ''::text)",
    "concat(t, q)", "concat(t, i, u)", "concat(t, NULL::text, 'x'::text)", "split_part(t, ','::text, 1)",
    "split_part(t, ','::text, 3)", "split_part(t, 'a'::text, 2)", "split_part(t, ','::text, '-1'::integer)",
    "split_part(t, 'bc'::text, '-2'::integer)", "lpad(t, 5)", "lpad(t, 5, 'xy'::text)", "lpad(t, 0, 'x'::text)",
    "lpad(t, '-1'::integer, 'x'::text)", "rpad(t, 4)", "rpad(t, 6, '日'::text)", "reverse(t)", "md5(t)",
    "repeat(t, 3)",
    "repeat(q, '-1'::integer)", "COALESCE(t, q, 'none'::text)", "nullif(t, q)", "(CASE WHEN ok THEN t ELSE q END)",
    "(CASE t WHEN 'a'::text THEN 'one'::text WHEN 'é'::text THEN 'two'::text ELSE t END)",
    "(CASE WHEN t LIKE '%b%'::text THEN 'b'::text END)",
]  # fmt: skip
COUNTED = [
    "length(t)::int8", "char_length(t)::int8", "octet_length(t)::int8", "strpos(t, q)::int8",
    "strpos(t, 'b'::text)::int8",
    "POSITION((q) IN (t))::int8", "length((t)::char(4))::int8", "length(y)::int8", "(ok)::int4::int8",
]  # fmt: skip
CONDITIONS = [
    "t = q", "t <> q", "t = 'a'::text", "t <> 'it''s'::text", "t IS NULL", "t IS NOT DISTINCT FROM q",
    "t LIKE 'a%'::text",
    "t LIKE '%b'::text", "t LIKE '_'::text", "t LIKE '__'::text", "t LIKE '%\\%%'::text", "t LIKE '\\_x'::text",
    "t LIKE 'a\\\\b'::text", "t LIKE 'a_b'::text", "t LIKE '%'::text", "t LIKE ''::text", "NOT (t LIKE '%a%'::text)",
    "t LIKE '\\a%'::text", "t = ANY (ARRAY['a'::text, 'ab'::text, 'a\\b'::text, ''::text])",
    "t <> ALL (ARRAY['a'::text, ''::text])",
    "starts_with(t, q)", "starts_with(t, ''::text)", "(t)::char(3) = (q)::char(3)", "(t)::char(2) = 'a'::bpchar",
    "(t)::char(2) = 'ab '::bpchar", "u = w", "u < w", "u >= w", "u = '00000000-0000-4000-8000-000000000001'::uuid",
    "u IS DISTINCT FROM w", "y IS NULL", "ok", "NOT ok", "ok IS TRUE", "ok IS NOT TRUE", "ok IS FALSE",
    "ok OR t = 'a'::text", "ok AND t = 'a'::text", "ok = (t = q)", "ok IS DISTINCT FROM (t = q)",
    "COALESCE(ok, false)",
    "length(t) > 2", "(t || q) = 'aa'::text", "j IS NULL", "btrim(t) = ''::text",
]  # fmt: skip
ORDERED = [
    "t < q",
    "t <= 'b'::text",
    "t > 'Z'::text",
    "t >= q",
    "t < 'é'::text",
    "t > '日'::text",
    "t >= 'a'::text AND t <= 'b'::text",
]


@pytest.mark.slow
def test_texts(db: psycopg.Connection, sessions: Sessions) -> None:
    VALUES.check(
        db, sessions, [*((e, TEXT) for e in SHOWN), *((e, LONG) for e in COUNTED), *((e, BOOL) for e in CONDITIONS)]
    )  # fmt: skip


def test_order_where_the_database_sorts_by_bytes(db: psycopg.Connection, sessions: Sessions) -> None:
    row = db.execute("SELECT datlocprovider, datlocale FROM pg_database WHERE datname = current_database()").fetchone()
    assert row == ("b", "C.UTF-8"), "the server that is shipped sorts by bytes"
    VALUES.check(db, sessions, [(e, BOOL) for e in ORDERED], bytewise=True)


def test_text_that_only_postgresql_knows(db: psycopg.Connection) -> None:
    wrong = refused(db, VALUES, [
        *ORDERED, "lower(t)", "upper(t)", "initcap(t)", "t ILIKE 'a%'::text", "t ~ 'a'::text", "t LIKE q",
        "t LIKE 'a\\'::text",
        "concat(t, ok)", "j = j", "(t)::char(3) LIKE 'a%'::text", "(t)::integer", "(t)::date", "(t)::numeric",
        "GREATEST(t, q)",
        "split_part(t, ''::text, 1)", "split_part(t, q, 1)", "substr(t, 1, '-1'::integer)",
        'SUBSTRING(t FROM \'a+\'::text)',
        "(t)::char(3) < (q)::char(3)", "regexp_replace(t, 'a'::text, 'b'::text)", "to_char(i, '9'::text)",
        "(j)::jsonb", "t COLLATE \"C\" < q",
    ])  # fmt: skip
    assert wrong == []
