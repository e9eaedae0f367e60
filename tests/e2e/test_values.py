"""Names and values of every kind travel through capture, Spark and back without losing anything."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, last_refresh, rows, script, value


def test_strange_names(db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    script(
        db,
        'CREATE TABLE "Täble ""x"" 100%" ("Id" int PRIMARY KEY, "a b" text, "per%cent" int, "qu""ote" '
        "int, w int, n int, "
        'l0 int, "SELECT" int, "größe" numeric(8,2), c1 int, o0 int, pgt_w int, "%s" int);'
        'INSERT INTO "Täble ""x"" 100%" SELECT i, \'v\' || i, i, i, i, i, i, i, i, i, i, i, i FROM '
        "generate_series(1, 8) i;"
        'CREATE TABLE "other table" ("Id" int, w int, "a b" text); INSERT INTO "other table" VALUES (1, '
        "1, 'x'), (3, 3, 'y')",
    )
    make = client.create_stream_table
    every = '"Id", "a b", "per%cent", "qu""ote", w, n, l0, "SELECT", "größe", c1, o0, pgt_w, "%s"'
    make('"Strange ""name"" %s"', f'SELECT {every} FROM "Täble ""x"" 100%"', "@yearly", "DIFFERENTIAL")
    make(
        '"J"',
        'SELECT t."Id", t.w, o.w AS "o w", t.l0, o."a b" AS "100%" FROM "Täble ""x"" 100%" t LEFT JOIN '
        '"other table" o ON o."Id" = t.w',
        "@yearly",
        "DIFFERENTIAL",
    )
    make(
        "agg",
        'SELECT w % 2 AS "w", sum(n) AS n, max("per%cent") AS "per%cent", count(DISTINCT l0) AS "l0", '
        'min("a b") AS "a b" FROM "Täble ""x"" 100%" GROUP BY w % 2',
        "@yearly",
        "DIFFERENTIAL",
    )
    make(
        "likes",
        """SELECT "a b" FROM "Täble ""x"" 100%" WHERE "a b" LIKE 'v%' AND "a b" <> '%s' AND "%s" % 2 = 0""",
        "@yearly",
        "DIFFERENTIAL",
    )
    make('"Over"', 'SELECT "o w", count(*) AS "n%" FROM "J" GROUP BY "o w"', "@yearly", "DIFFERENTIAL")
    names = ('"Strange ""name"" %s"', '"J"', "agg", "likes", '"Over"')
    for change in (
        'UPDATE "Täble ""x"" 100%" SET w = w + 1, n = -n, l0 = 5, "per%cent" = 1, "größe" = 1.5 WHERE "Id" < 4',
        'DELETE FROM "Täble ""x"" 100%" WHERE "Id" = 3',
        "INSERT INTO \"other table\" VALUES (8, 9, '%'), (2, 2, 'a\"b')",
        'UPDATE "Täble ""x"" 100%" SET "Id" = "Id" + 100, "a b" = \'%d\'',
    ):
        with db.cursor() as cursor:
            cursor.execute(change.encode())
        check(*names)
        assert {last_refresh(client, n).action for n in names} == {"DIFFERENTIAL"}


def test_a_stream_table_may_have_the_longest_name(db: psycopg.Connection, client: runnel.Client, check: Check) -> None:
    name = "n" * 63
    script(db, f"CREATE TABLE {'t' * 63} ({'c' * 63} int); INSERT INTO {'t' * 63} VALUES (1)")
    client.create_stream_table(name, f"SELECT {'c' * 63}, count(*) AS n FROM {'t' * 63} GROUP BY 1", "@yearly")
    db.execute(f"INSERT INTO {'t' * 63} VALUES (1), (2)".encode())
    check(name)
    client.create_stream_table(name[:-1], f"SELECT {'c' * 63} FROM {'t' * 63}", "@yearly")
    check(name[:-1])


def test_values_of_every_type_are_carried_unchanged(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s \"fine\"'); CREATE DOMAIN positive AS int CHECK (value > 0);"
        "CREATE DOMAIN label AS text; CREATE TYPE point3 AS (x int, y text)",
    )
    columns = {
        "id": "int",
        "s": "text",
        "vc": "varchar(40)",
        "ch": "char(6)",
        "big": "bigint",
        "small": "smallint",
        "num": "numeric",
        "num2": "numeric(38,10)",
        "f4": "real",
        "f8": "float8",
        "b": "boolean",
        "d": "date",
        "ts": "timestamp",
        "tz": "timestamptz",
        "tm": "time",
        "iv": "interval",
        "u": "uuid",
        "bin": "bytea",
        "j": "json",
        "jb": "jsonb",
        "ints": "int[]",
        "texts": "text[]",
        "grid": "int[][]",
        "m": "mood",
        "moods": "mood[]",
        "pos": "positive",
        "lab": "label",
        "r": "int4range",
        "ip": "inet",
        "comp": "point3",
        "bits": "bit varying",
        "p": "point",
        "cash": "money",
        "words": "tsvector",
        "pts": "point[]",
    }
    db.execute(f"CREATE TABLE t ({', '.join(f'{n} {t}' for n, t in columns.items())})".encode())
    fill = """INSERT INTO t VALUES
      (1, 'line1
line2, "quoted", back\\slash\ttab', '', 'ab', 9223372036854775807, -32768, 1e100, -12345678901234567890.1234567891,
       'NaN', 1e308, true, '0044-03-15 BC', 'infinity', '2024-03-31 02:30:00.123456+00', '23:59:59.999999',
       '1 year -2 days 03:04:05.6', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff5c2c22',
       '{"b": 1, "a": [1,  2]}', '{"k": "v\\"q", "n": null}',
       '{1,NULL,3}', '{"",NULL,"a,b","{}","\\"q\\""}', '{{1,2},{3,4}}', 'it''s "fine"', '{ok,NULL}', 7, '', '[1,5)',
       '10.0.0.0/8', ROW(1, 'a,"b"'), B'1010', '(1.5,-2)', '$1.50', 'a b c', '{"(1,2)"}'),
      (2, '', 'ü€😀', '', -9223372036854775808, 0, -1e-100, 0.0000000001, '-0', '-0', false, 'infinity',
       '1999-12-31 23:59:59', '-infinity', '00:00', '-1 mons',
       '00000000-0000-0000-0000-000000000000', '', 'null', '[]', '{}', '{}', '{}',
       'sad', '{}', 1, ' ', 'empty', '::1', ROW(NULL, ''), B'', '(0,0)', '-3', '', '{}'),
      (3, '\\N', 'NULL', 'null', 1, 1, 'NaN', 1, 'Infinity', '-Infinity', true, '2024-02-29', '2024-01-01',
       '2024-01-01 00:00:00-12', '12:00', '0', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
      (4, ' lead and trail ', E'\\r\\n', 't', 1, 1, 1.10, 1, 1.1, 0.1,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""
    db.execute(fill.encode())
    db.execute("INSERT INTO t (id) SELECT 5")
    listed = ", ".join(columns)
    cast = ", ".join(f"{n}::text" for n in columns)
    stream("copy", f"SELECT {listed} FROM t")
    check("copy")
    assert rows(db, f"SELECT {cast} FROM copy ORDER BY id") == rows(db, f"SELECT {cast} FROM t ORDER BY id")
    db.execute("UPDATE t SET id = id + 10")
    check("copy")
    assert last_refresh(client, "copy").action == "DIFFERENTIAL"
    assert rows(db, f"SELECT {cast} FROM copy ORDER BY id") == rows(db, f"SELECT {cast} FROM t ORDER BY id")
    db.execute("DELETE FROM t WHERE id IN (11, 14)")
    db.execute("UPDATE t SET s = s || E'\\n', num = num + 1")
    check("copy")
    assert rows(db, f"SELECT {cast} FROM copy ORDER BY id") == rows(db, f"SELECT {cast} FROM t ORDER BY id")


@pytest.mark.slow
def test_values_as_group_and_join_keys(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int, s text, num numeric, f float8, d "
        "date, tz timestamptz,"
        " u uuid, m mood, b bool, ch char(5), bin bytea, jb jsonb, ints int[], iv interval);"
        "INSERT INTO t SELECT i, CASE i % 4 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE 'x,' || i % 4 END, (i % "
        "3)::numeric(10,2),"
        " CASE i % 3 WHEN 0 THEN 'NaN'::float8 ELSE i % 3 END, date '2024-01-01' + i % 3, timestamptz "
        "'2024-01-01' + i % 2 * interval '1 h',"
        " md5((i % 3)::text)::uuid, CASE i % 2 WHEN 0 THEN 'sad' ELSE 'ok' END::mood, i % 2 = 0, 'c' || i "
        "% 2, decode('0' || i % 3, 'hex'),"
        " jsonb_build_object('k', i % 2), ARRAY[i % 2], make_interval(hours => i % 2) FROM generate_series(1, 24) i",
    )
    keys = ["s", "num", "f", "d", "tz", "u", "m", "b", "ch", "bin", "jb", "ints", "iv"]
    for key in keys:
        stream(f"by_{key}", f"SELECT {key}, count(*) AS n, max(id) AS top FROM t GROUP BY {key}")
    same = [k for k in keys if k not in ("f",)]
    stream(
        "joined",
        "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.s = b.s AND a.num = b.num AND a.tz = b.tz AND a.m = b.m",
    )
    stream("by_float", "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.f = b.f AND a.ch = b.ch AND a.u = b.u")
    stream(
        "by_json", "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.jb = b.jb AND a.ints = b.ints AND a.bin = b.bin"
    )
    names = [*(f"by_{k}" for k in same), "by_f", "joined", "by_float", "by_json"]
    check(*names)
    script(db, "UPDATE t SET num = 1.0, s = '', f = '-0', ch = 'c0' WHERE id % 5 = 0; DELETE FROM t WHERE id % 7 = 0")
    db.execute(
        "INSERT INTO t SELECT id + 100, s, 1.000, 0, d, tz, u, m, b, 'c0  ', bin, jb, ints, '60 minutes' "
        "FROM t WHERE id < 9"
    )
    check(*names)
    assert {last_refresh(client, n).action for n in names} == {"DIFFERENTIAL"}


def test_huge_and_negative_numbers_add_up_exactly(db: psycopg.Connection, stream: Stream, check: Check) -> None:
    script(
        db,
        "CREATE TABLE t (k int, big bigint, n numeric, p numeric(38,10), small numeric(15,2));"
        "INSERT INTO t VALUES (1, 9223372036854775807, 1e40, 9999999999999999999999999999.9999999999, "
        "-9999999999999.99),"
        " (1, 9223372036854775807, -1e40, -9999999999999999999999999999.9999999999, 9999999999999.99),"
        " (1, -9223372036854775808, 1e-40, 0.0000000001, 0.01), (2, -1, -0.5, -0.5, -0.5)",
    )
    stream(
        "sums",
        "SELECT k, sum(big) AS b, sum(n) AS n, sum(p) AS p, avg(p) AS ap, sum(small) AS s, sum(small * "
        "small) AS ss, variance(big) AS vb, stddev(small) AS sd FROM t GROUP BY k",
    )
    check("sums")
    script(
        db,
        "INSERT INTO t SELECT k, big, n, p, small FROM t, generate_series(1, 40); UPDATE t SET small = "
        "-small WHERE big < 0",
    )
    check("sums")
    db.execute("DELETE FROM t WHERE big > 0")
    check("sums")
    assert rows(db, "SELECT b::text, s::text FROM sums WHERE k = 2") == [("-41", "20.50")]


def test_the_creators_time_zone_and_styles_stay_in_force(db: psycopg.Connection, stream: Stream, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SET TimeZone = 'America/New_York'")
        conn.execute("CREATE TABLE t (at timestamptz, v int)")
        conn.execute("INSERT INTO t VALUES ('2024-03-10 03:30:00+00', 1), ('2024-03-10 12:00:00+00', 2)")
        conn.execute(
            "SELECT pgtrickle.create_stream_table('days', $$SELECT date_trunc('day', at) AS d, at::date AS day, "
            "to_char(at, 'HH24') AS h, sum(v) AS s FROM t GROUP BY 1, 2, 3$$, '@yearly', 'DIFFERENTIAL')"
        )
        conn.execute("SET DateStyle = 'German, DMY'")
        conn.execute(
            "SELECT pgtrickle.create_stream_table('texts', $$SELECT at::date::text AS d FROM t$$, "
            "'@yearly', 'DIFFERENTIAL')"
        )
    db.execute("SET TimeZone = 'Asia/Tokyo'")
    db.execute("INSERT INTO t VALUES ('2024-03-10 04:59:59+00', 4)")
    for name in ("days", "texts"):
        db.execute("SELECT pgtrickle.refresh_stream_table(%s)", (name,))
    assert rows(db, "SELECT day::text, h, s FROM days ORDER BY 1, 2") == [
        ("2024-03-09", "22", 1),
        ("2024-03-09", "23", 4),
        ("2024-03-10", "08", 2),
    ]
    assert rows(db, "SELECT d FROM texts ORDER BY d") == [("09.03.2024",), ("09.03.2024",), ("10.03.2024",)]
    assert value(db, "SELECT (pgtrickle.verify_stream_table('days') ->> 'ok')::bool")
    assert value(db, "SELECT (pgtrickle.verify_stream_table('texts') ->> 'ok')::bool")
