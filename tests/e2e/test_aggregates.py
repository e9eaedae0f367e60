"""Every aggregate of PostgreSQL, maintained by deltas: after each change the stream table equals its query."""

from __future__ import annotations

import psycopg
import pytest

import runnel
from tests.e2e.helpers import Check, Stream, last_refresh, rows, script, value
from tests.sampling import sampled

READINGS = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad');
CREATE TABLE readings (
  id int, k text, i int, j int, n numeric, p numeric(10,2), f float8, g float4, s text, v varchar(20),
  c text COLLATE "C", b bytea, flag bool, d date, at timestamptz, iv interval, ip inet, bits bit(4), arr int[], js json,
  jb jsonb, m mood, r int4range, pt point, y money);
INSERT INTO readings SELECT z, CASE WHEN z % 4 = 3 THEN NULL ELSE 'k' || z % 4 END, z % 5, nullif(z % 7, 3),
  z % 3 / 10.0, z % 6 * 1.25, z / 7.0, z / 3.0,
  CASE WHEN z % 6 <> 0 THEN chr(65 + z % 9 + z % 2 * 32) END, 'v' || z % 3,
  chr(97 - z % 2 * 32), decode(lpad(to_hex(z), 2, '0'), 'hex'), z % 5 > 1, date '2024-01-01' + z % 4,
  timestamptz '2024-01-01 00:00+00' + z % 3 * interval '1 h', z % 3 * interval '1 day', ('10.0.0.' || z % 4)::inet,
  (z % 16)::bit(4), ARRAY[z % 2, z % 3], json_build_object('z', z % 3), jsonb_build_object('z', z % 3),
  (ARRAY['sad', 'ok', 'glad'])[1 + z % 3]::mood, int4range(z, z + z % 3 + 1), point(z % 2, 1),
  (z % 5)::money
  FROM generate_series(1, 24) z;
"""
CHANGES = (
    # Equal rows, and rows of NULLs in groups that there are and in one of their own.
    "INSERT INTO readings SELECT * FROM readings WHERE id IN (1, 2, 3, 4, 5);"
    "INSERT INTO readings (id, k) VALUES (100, 'k0'), (101, NULL), (102, 'nulls')",
    # Values that are equal and do not look the same; rows that change their group.
    "UPDATE readings SET n = n * 1.00, f = -f, iv = iv + interval '1 mon' - interval '30 days', "
    "j = coalesce(j, 0) - 1, "
    "s = lower(s), m = 'ok', r = int4range(1, 3), flag = NOT flag, arr = arr || NULL::int WHERE id % 3 = 0;"
    "UPDATE readings SET k = 'moved' WHERE id % 5 = 0",
    "DELETE FROM readings WHERE k = 'k1' OR id IN (2, 102)",
    "DELETE FROM readings",
    "INSERT INTO readings (id, k, i, j, n, f, s, v, c, b, m, jb) "
    "VALUES (1, 'new', 1, 2, 3, 4, 's', 'v', 'c', 'b', 'ok', '1')",
)

FAMILIES = {
    "statistics": "{corr(f, i)}, {covar_pop(f, i)}, {covar_samp(f, i)}, {regr_avgx(f, i)}, {regr_avgy(f, i)}, "
    "regr_count(f, j), {regr_intercept(f, i)}, {regr_r2(f, i)}, {regr_slope(f, i)}, {regr_sxx(f, i)}, {regr_sxy(f, "
    "i)}, "
    "{regr_syy(j, i)}, {sum(f)}, {avg(g)}, sum(iv), avg(iv), sum(n), avg(n), {stddev(f)}, var_pop(n), variance(i), "
    "sum(y), "
    "{avg(f ORDER BY id)}, sum(i ORDER BY s), {corr(i, p::float8)}",
    "bits": "bit_and(i), bit_or(j), bit_xor(j), bit_and(bits), bit_or(bits), bit_xor(bits), bool_and(flag), "
    "bool_or(flag), every(i > 0), any_value(CASE WHEN id > 0 THEN 7 END), count(*), count(j), count(1), count(pt), "
    "count(js), "
    "count(ROW(i, j)), bit_xor(DISTINCT j), bool_or(DISTINCT flag)",
    "strings": "string_agg(s, ', ' ORDER BY s, id), string_agg(s, v ORDER BY id, v DESC), "
    "string_agg(b, '\\x00'::bytea ORDER BY b), string_agg(DISTINCT s, '/' ORDER BY s), "
    "string_agg(v, '' ORDER BY c, v), string_agg(s || i, ',' ORDER BY i DESC NULLS LAST, s NULLS FIRST), "
    "string_agg('x', '-'), string_agg(DISTINCT s, s), string_agg(upper(s), ',' ORDER BY c COLLATE \"C\", upper(s))",
    "arrays": "array_agg(i ORDER BY i), array_agg(DISTINCT j ORDER BY j DESC), array_agg(n ORDER BY n::text), "
    "array_agg(f ORDER BY f, f::text), array_agg(s ORDER BY id, s), array_agg(m ORDER BY m), "
    "array_agg(iv ORDER BY iv::text), "
    "array_agg(c ORDER BY c), array_agg(ARRAY[i, j] ORDER BY i, j), array_agg(js ORDER BY js::text)::text, "
    "array_agg(pt ORDER BY pt[0])::text, array_agg(d ORDER BY d) FILTER (WHERE i > 1), array_agg(1), "
    "array_length(array_agg(ROW(i, j)), 1), array_agg(DISTINCT n)",
    "json": "json_agg(i ORDER BY i), jsonb_agg(s ORDER BY s), json_agg(js ORDER BY js::text), "
    "json_agg_strict(j ORDER BY j), jsonb_agg_strict(j ORDER BY j), "
    "json_object_agg(id, n ORDER BY id, n::text), jsonb_object_agg(id, j ORDER BY id), "
    "json_object_agg_strict(id, j ORDER BY id, j), jsonb_object_agg_strict(id, j), "
    "jsonb_agg(jsonb_build_object('i', i, 'n', n) ORDER BY i, n::text), json_agg(ROW(i, s) ORDER BY i, s), "
    "jsonb_agg(DISTINCT jb ORDER BY jb), json_object_agg(DISTINCT i, j ORDER BY i, j) FILTER (WHERE i IS NOT NULL)",
    "unique_objects": "json_object_agg_unique(id, s ORDER BY id) FILTER (WHERE id > 5), "
    "jsonb_object_agg_unique(id, s) FILTER (WHERE id > 5), "
    "json_object_agg_unique_strict(id, s ORDER BY id) FILTER (WHERE id > 5), "
    "jsonb_object_agg_unique_strict(id, s) FILTER (WHERE id > 5)",
    "ordered_sets": "percentile_cont(0.5) WITHIN GROUP (ORDER BY f), "
    "percentile_disc(0.25) WITHIN GROUP (ORDER BY i DESC), "
    "percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY p), percentile_cont(0.3) WITHIN GROUP (ORDER BY iv), "
    'percentile_disc(ARRAY[0.5, 1]) WITHIN GROUP (ORDER BY s COLLATE "C"), mode() WITHIN GROUP (ORDER BY i), '
    "mode() WITHIN GROUP (ORDER BY s DESC), percentile_disc(0.5) WITHIN GROUP (ORDER BY i) FILTER (WHERE flag), "
    "percentile_cont(CASE WHEN k = 'k0' THEN 0.1 ELSE 0.7 END) WITHIN GROUP (ORDER BY i)",
    "hypothetical": "rank(3) WITHIN GROUP (ORDER BY i), dense_rank(3) WITHIN GROUP (ORDER BY i DESC), "
    "percent_rank(3) WITHIN GROUP (ORDER BY j NULLS FIRST), cume_dist(2, 'm'::text) WITHIN GROUP (ORDER BY i, s), "
    "rank(k) WITHIN GROUP (ORDER BY s)",
    "ranges": "range_agg(r), range_intersect_agg(r), range_agg(r) FILTER (WHERE i > 2), range_agg(DISTINCT r)",
    "extremes": "min(s), max(s), min(c), max(c), min(v), max(n), min(n), max(f), min(arr), max(arr), min(ip), max(ip), "
    'min(m), max(m), min(iv), max(iv), max(d), min(at), max(b), min(s COLLATE "C"), max(i) - min(i), max(y), '
    "min(i + j) FILTER (WHERE flag), max(ROW(i, j))::text, min(DISTINCT j)",
    "distinct": "count(DISTINCT i), count(DISTINCT s), count(DISTINCT n), count(DISTINCT f), count(DISTINCT jb), "
    "count(DISTINCT (i, j)), count(DISTINCT (i, n)) FILTER (WHERE flag), count(DISTINCT arr), count(DISTINCT bits), "
    "count(DISTINCT iv), count(DISTINCT m), sum(DISTINCT j), avg(DISTINCT n), stddev(DISTINCT i), "
    "string_agg(DISTINCT v, ',' ORDER BY v DESC) FILTER (WHERE i <> 2), count(DISTINCT i + j), "
    "array_agg(DISTINCT i ORDER BY i) FILTER (WHERE flag), count(DISTINCT i) FILTER (WHERE j > 2)",
    "expressions": "coalesce(string_agg(s, '' ORDER BY s), '-') || count(*), "
    "CASE WHEN count(DISTINCT i) > 2 THEN array_to_string(array_agg(i ORDER BY i), '+') END, "
    "jsonb_build_object('mid', percentile_disc(0.5) WITHIN GROUP (ORDER BY i), 'all', jsonb_agg(i ORDER BY i)), "
    "(array_agg(id ORDER BY i DESC, id))[1], cardinality(array_agg(DISTINCT s)) + max(i), "
    "sum(10 / i) FILTER (WHERE i <> 0), string_agg((10 / i)::text, ',' ORDER BY 10 / i) FILTER (WHERE i <> 0)",
}


def listed(calls: str) -> str:
    """A select list with a name for every column; floats, in braces, are rounded: zero may come out as 1e-17."""
    calls = calls.replace("{", "round((").replace("}", ")::numeric, 6)")
    depth, parts, quoted = 0, [""], False
    for sign in calls:
        quoted ^= sign == "'"
        depth += 0 if quoted else (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return ", ".join(f"{part} AS c{i}" for i, part in enumerate(parts))


@pytest.mark.parametrize("name", sampled(FAMILIES, every=4))
def test_groups_and_the_whole_follow_every_kind_of_change(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, READINGS)
    items = listed(FAMILIES[name])
    stream("grouped", f"SELECT k, {items} FROM readings GROUP BY k")
    whole = items.replace("CASE WHEN k = 'k0' THEN 0.1 ELSE 0.7 END", "0.2").replace("rank(k)", "rank('m'::text)")
    stream("whole", f"SELECT {whole} FROM readings")
    for number, change in enumerate(CHANGES):
        script(db, change)
        # The whole takes several changes at once, and is empty in between.
        names = ("grouped", "whole") if number in (2, 3, 4) else ("grouped",)
        check(*names)
        assert {last_refresh(client, n).action for n in names} == {"DIFFERENTIAL"}
    assert value(db, "SELECT count(*) FROM grouped") == value(db, "SELECT count(*) FROM whole") == 1


SHOPS = """
CREATE TABLE shops (name text PRIMARY KEY, town text, size float8);
CREATE TABLE sales (id int, shop text, item text, qty int, paid bool);
INSERT INTO shops VALUES ('a', 'Ulm', 1.5), ('b', 'Ulm', 2.5), ('c', 'Kiel', 0.5), ('d', NULL, NULL), ('e', 'Jena', 9);
INSERT INTO sales SELECT i, chr(97 + i % 4), 'item' || i % 3, i % 5, i % 2 = 0 FROM generate_series(1, 20) i;
"""
SHOP_CHANGES = (
    "INSERT INTO sales VALUES (50, 'e', 'new', 7, true), (51, 'zz', 'lost', 1, NULL);"
    "UPDATE shops SET size = 4 WHERE name = 'b'",
    "UPDATE shops SET town = 'Kiel' WHERE name = 'a'; DELETE FROM sales WHERE shop = 'c';"
    "DELETE FROM shops WHERE name = 'b'; UPDATE sales SET shop = 'c', qty = NULL WHERE id % 6 = 0",
    "DELETE FROM sales; INSERT INTO shops VALUES ('zz', 'Ulm', 1)",
)
JOINED = {
    "inner": "SELECT h.town, string_agg(s.item || h.name, ',' ORDER BY s.id) AS a, "
    "round(corr(s.qty, h.size)::numeric, 6) AS b, array_agg(s.qty * h.size ORDER BY s.qty * h.size, s.id) AS c, "
    "count(DISTINCT (s.item, h.size)) AS d FROM sales s JOIN shops h ON h.name = s.shop GROUP BY h.town",
    "left": "SELECT h.name, array_agg(s.id ORDER BY s.id) AS a, json_agg(coalesce(s.item, '-') ORDER BY s.id) AS b, "
    "mode() WITHIN GROUP (ORDER BY s.qty) AS c, string_agg(coalesce(s.item, h.town), '+' ORDER BY s.id, h.town) AS d, "
    "array_agg(s.item ORDER BY s.id) FILTER (WHERE s.paid OR h.size > 2) AS e "
    "FROM shops h LEFT JOIN sales s ON s.shop = h.name GROUP BY h.name",
    "full": "SELECT coalesce(h.town, '?') AS t, array_agg(ROW(s.id, h.name)::text ORDER BY s.id, h.name) AS a, "
    "percentile_disc(0.5) WITHIN GROUP (ORDER BY coalesce(s.qty, -1)) AS b "
    "FROM sales s FULL JOIN shops h ON h.name = s.shop GROUP BY coalesce(h.town, '?')",
    "having": "SELECT h.town FROM sales s JOIN shops h ON h.name = s.shop GROUP BY h.town "
    "HAVING cardinality(array_agg(DISTINCT s.item)) > 2 AND percentile_cont(0.5) WITHIN GROUP (ORDER BY s.qty) > 1",
    "levels": "SELECT n, string_agg(items, '|' ORDER BY items) AS a FROM (SELECT s.shop, count(*) AS n, "
    "string_agg(DISTINCT s.item, ',' ORDER BY s.item) AS items FROM sales s GROUP BY s.shop) x GROUP BY n",
    "union": "SELECT x.k, array_agg(x.v ORDER BY x.v) AS a, count(DISTINCT x.v) AS b FROM (SELECT shop AS k, item AS v "
    "FROM sales UNION ALL SELECT name, town FROM shops) x GROUP BY x.k",
    "mixed_union": "SELECT sum(x.v) AS a, max(x.v) AS b, array_agg(x.v ORDER BY x.v) AS c, count(DISTINCT x.v) AS d "
    "FROM (SELECT qty AS v FROM sales UNION ALL SELECT size::numeric FROM shops) x",
    "determined": "SELECT h.name, h.town, string_agg(s.item, h.town ORDER BY s.id) AS a "
    "FROM shops h JOIN sales s ON s.shop = h.name GROUP BY h.name",
}


@pytest.mark.parametrize("name", JOINED)
def test_aggregates_over_several_tables(
    name: str, db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(db, SHOPS)
    stream("result", JOINED[name])
    for change in SHOP_CHANGES:
        with db.transaction():
            script(db, change)
        check("result")
        assert last_refresh(client, "result").action == "DIFFERENTIAL"


OWN = """
CREATE AGGREGATE product(numeric) (sfunc = numeric_mul, stype = numeric, initcond = '1')
---
CREATE FUNCTION pair(state text, a int, b text) RETURNS text IMMUTABLE LANGUAGE sql
  AS $$ SELECT coalesce(state, '') || coalesce(a::text, '?') || coalesce(b, '!') $$
---
CREATE AGGREGATE "Pairs"(int, text) (sfunc = pair, stype = text)
---
CREATE FUNCTION pick(state anycompatiblearray, place int) RETURNS anycompatible IMMUTABLE LANGUAGE sql
  AS $$ SELECT (array_agg(x ORDER BY x))[place] FROM unnest(state) x $$
---
CREATE AGGREGATE nth(int ORDER BY anycompatible)
  (sfunc = array_append, stype = anycompatiblearray, finalfunc = pick)
---
CREATE AGGREGATE most(VARIADIC int[]) (sfunc = int4_add_all, stype = int)
"""


def test_own_aggregates(db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check) -> None:
    db.execute(
        "CREATE FUNCTION int4_add_all(state int, VARIADIC x int[]) RETURNS int IMMUTABLE LANGUAGE sql "
        "AS $$ SELECT coalesce(state, 0) + (SELECT coalesce(sum(y), 0) FROM unnest(x) y)::int $$"
    )
    for statement in OWN.split("---"):
        db.execute(statement.encode())
    script(
        db,
        "CREATE TABLE t (id int, k int, s text); INSERT INTO t SELECT i, i % 3, "
        "'s' || i % 4 FROM generate_series(1, 9) i",
    )
    stream(
        "own",
        'SELECT k, product(id) AS a, "Pairs"(id, s ORDER BY id) AS b, nth(2) WITHIN GROUP (ORDER BY id) AS c, '
        "product(DISTINCT length(s)) FILTER (WHERE id > 2) AS d, most(id, k) AS e, "
        "nth(k) WITHIN GROUP (ORDER BY s) FILTER (WHERE id <> 4) AS f, product(id) + count(*) AS g FROM t GROUP BY k",
    )
    for change in (
        "INSERT INTO t VALUES (20, 1, NULL), (NULL, 2, 'x'), (3, 0, 's3')",
        "UPDATE t SET id = id + 1, s = s || 'y' WHERE id % 2 = 0",
        "DELETE FROM t WHERE k = 1 OR id IS NULL",
    ):
        db.execute(change.encode())
        check("own")
        assert last_refresh(client, "own").action == "DIFFERENTIAL"


def test_values_keep_their_looks(db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check) -> None:
    script(db, "CREATE TABLE t (k int, n numeric, iv interval, f float8, jb jsonb)")
    db.execute("INSERT INTO t VALUES (1, 1.0, '1 mon', 0, '1.0'), (1, 1.00, '30 days', '-0', '1.00')")
    stream(
        "looks",
        "SELECT k, min(n)::text AS lo, max(iv)::text AS iv, json_agg(n ORDER BY n::text)::text AS j, "
        "sum(n)::text AS s, "
        "array_agg(f ORDER BY f::text)::text AS f, string_agg(jb::text, ',' ORDER BY jb::text) AS jb, "
        "count(DISTINCT n) AS n, count(DISTINCT jb) AS m FROM t GROUP BY k",
    )
    (first,) = rows(db, "SELECT j, s, f, jb, n, m FROM looks")
    assert first == ("[1.0, 1.00]", "2.00", "{-0,0}", "1.0,1.00", 1, 1)
    db.execute("DELETE FROM t WHERE n::text = '1.0'")
    check("looks")
    (left,) = rows(db, "SELECT lo, iv, j, s, f, jb, n, m FROM looks")
    assert left == ("1.00", "30 days", "[1.00]", "1.00", "{-0}", "1.00", 1, 1)


def test_collations_decide_on_groups_values_and_order(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    try:
        db.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this PostgreSQL is built without ICU")
    script(
        db,
        'CREATE TABLE t (id int, k text COLLATE ci, c text COLLATE "C", d text COLLATE "de-x-icu");'
        "INSERT INTO t VALUES (1, 'x', 'a', 'a'), (2, 'X', 'B', 'B'), (3, 'y', 'b', 'Ä'), (4, 'y', 'A', 'z')",
    )
    stream(
        "collated",
        "SELECT lower(k) AS k, min(c) AS c0, max(c) AS c1, min(d) AS d0, max(d) AS d1, array_agg(c ORDER BY c) AS c, "
        'array_agg(d ORDER BY d) AS d, array_agg(d ORDER BY d COLLATE "C") AS e, count(DISTINCT k) AS n, '
        "percentile_disc(0.5) WITHIN GROUP (ORDER BY d) AS p FROM t GROUP BY lower(k)",
    )
    stream("loose", "SELECT count(*) AS n, count(DISTINCT c) AS m, array_agg(id ORDER BY id) AS i FROM t GROUP BY k")
    for change in (
        "INSERT INTO t VALUES (5, 'X', 'c', 'ö'), (6, 'Y', 'C', 'o'), (7, 'q', 'q', 'q')",
        "UPDATE t SET k = upper(k), c = lower(c) WHERE id IN (1, 3, 5)",
        "DELETE FROM t WHERE id IN (1, 7)",
    ):
        db.execute(change.encode())
        check("collated", "loose")
        assert last_refresh(client, "collated").action == "DIFFERENTIAL"
        assert last_refresh(client, "loose").action == "DIFFERENTIAL"
    assert rows(db, "SELECT i FROM loose ORDER BY i") == [([2, 5],), ([3, 4, 6],)]


def test_composites_are_values_like_others(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, check: Check
) -> None:
    script(
        db,
        "CREATE TYPE spot AS (x int, y text); CREATE TABLE t (id int, k int, p spot);"
        "INSERT INTO t VALUES (1, 1, '(1,a)'), (2, 1, '(1,)'), (3, 1, '(,)'), (4, 1, NULL), (5, 2, '(1,a)')",
    )
    stream(
        "spots",
        "SELECT k, count(p) AS n, count(DISTINCT p) AS d, array_agg(p ORDER BY p, id) AS a, max(p)::text AS m, "
        "json_agg(p ORDER BY id) AS j, count((p).y) AS y FROM t GROUP BY k",
    )
    for change in ("INSERT INTO t VALUES (6, 2, '(,b)'), (7, 1, '(1,a)')", "DELETE FROM t WHERE id IN (1, 4)"):
        db.execute(change.encode())
        check("spots")
        assert last_refresh(client, "spots").action == "DIFFERENTIAL"
    assert rows(db, "SELECT k, n, d, y FROM spots ORDER BY k") == [(1, 3, 3, 1), (2, 2, 2, 2)]


def test_calls_over_the_same_values_share_a_bag(db: psycopg.Connection, stream: Stream) -> None:
    db.execute("CREATE TABLE t (k int, v int, w int)")
    stream(
        "shared",
        "SELECT k, min(v) AS a, max(v) AS b, count(DISTINCT v) AS c, bit_or(v) AS d, sum(DISTINCT v) AS e, "
        "covar_pop(v, w) AS f, corr(v, w) AS g FROM t GROUP BY k",
    )
    kept = (
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'pgtrickle_state' "
        "AND starts_with(tablename::text, format('b_%s_', pgtrickle._find('shared')))"
    )
    assert value(db, kept) == 2


def test_what_is_not_maintained_says_so(db: psycopg.Connection, client: runnel.Client, stream: Stream) -> None:
    db.execute("CREATE TABLE t (k int, v int, at timestamptz)")
    with pytest.raises(runnel.RunnelError, match="the current time as a value"):
        stream("result", "SELECT k, array_agg(now()) AS a FROM t GROUP BY k")
