"""Everything that PostgreSQL can print survives the parser: it is read, printed, and means the same to PostgreSQL.

The catalog says what there is: every function, operator and type is tried once, with NULLs of the right types. Special
syntax is listed by hand. What does not survive is listed too, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from runnel.errors import UserError
from runnel.sql.describe import describe, qualified, scratch
from runnel.sql.parse import parse_query
from runnel.sql.stages import Compiler

BATCH = 100
ROW = (
    "(SELECT 1 AS a, 'x'::text AS s, now() AS ts, '{}'::jsonb AS j, NULL::xml AS xm, ARRAY[1, 2] AS arr, "
    "now()::timestamp AS tsn, current_date AS d, 'v'::text AS value, 'n'::text AS \"NFC\") t"
)
POLYMORPHIC = {
    "anyelement": "integer", "anyarray": "integer[]", "anynonarray": "integer", "anyenum": "mood",
    "anyrange": "int4range", "anymultirange": "int4multirange", "anycompatible": "integer",
    "anycompatiblearray": "integer[]", "anycompatiblenonarray": "integer", "anycompatiblerange": "int4range",
    "anycompatiblemultirange": "int4multirange", '"any"': "integer", "record": "odd_pair",
}  # fmt: skip

# Not one call of the catalog may be lost; what PostgreSQL itself does not take in a view is none.
FUNCTIONS = """
SELECT p.proname, p.prokind::text, p.provariadic <> 0, a.aggkind::text, a.aggnumdirectargs::int,
       ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY u(t, o) ORDER BY o)
FROM pg_proc p JOIN pg_type r ON r.oid = p.prorettype LEFT JOIN pg_aggregate a ON a.aggfnoid = p.oid
WHERE pronamespace = 'pg_catalog'::regnamespace AND provolatile <> 'v' AND prokind IN ('f', 'a', 'w')
  AND (r.typtype <> 'p' OR r.typname LIKE 'any%')
  AND NOT EXISTS (SELECT FROM unnest(proargtypes) t JOIN pg_type y ON y.oid = t
                  WHERE y.typtype = 'p' AND y.typname NOT LIKE 'any%')
ORDER BY 1, p.oid
"""
OPERATORS = """
SELECT oprname, format_type(nullif(oprleft, 0), NULL), format_type(oprright, NULL)
FROM pg_operator WHERE oprcode <> 0 ORDER BY 1, 2, 3
"""
TYPES = """
SELECT format_type(oid, NULL) FROM pg_type
WHERE typtype <> 'p' AND typrelid = 0 AND (typnamespace = 'pg_catalog'::regnamespace OR typname ~ '^_?(mood|odd)')
ORDER BY 1
"""

SYNTAX = """
SUBSTRING(t.s FROM 1 FOR 2) | SUBSTRING(t.s FROM 2) | SUBSTRING(t.s FOR 2) | SUBSTRING(t.s, 1, 2) | substr(t.s, 1, 2)
SUBSTRING(t.s SIMILAR 'a' ESCAPE '#') | SUBSTRING(t.s FROM 'a') | OVERLAY(t.s PLACING 'x' FROM 1 FOR 2)
OVERLAY(t.s PLACING 'x' FROM 1) | POSITION('x' IN t.s) | position(t.s IN t.value) | TRIM(t.s)
TRIM(BOTH 'x' FROM t.s) | TRIM(LEADING 'x' FROM t.s) | TRIM(TRAILING FROM t.s) | NORMALIZE(t.s) | NORMALIZE(t.s, NFKC)
NORMALIZE(t."NFC", NFC) | t.s IS NORMALIZED | t.s IS NFC NORMALIZED | t.s IS NOT NFKD NORMALIZED
EXTRACT(year FROM t.ts) | EXTRACT(epoch FROM t.tsn) | date_part('year', t.ts) | t.ts AT TIME ZONE 'UTC'
t.ts AT LOCAL | t.tsn AT LOCAL | (t.ts AT LOCAL)::date | (t.d, t.d) OVERLAPS (t.d, t.d) | t.s LIKE 'a%' ESCAPE '#'
t.s NOT ILIKE 'a%' | t.s NOT SIMILAR TO 'a' ESCAPE '#' | t.s !~ 'a' | t.s !~* ALL (ARRAY['a', 'b']) | t.s ^@ 'a'
t.s COLLATE "C" | t.a BETWEEN SYMMETRIC 2 AND 1 | t.a IS NOT DISTINCT FROM 3 | (t.a, t.s) IS DISTINCT FROM (1, 'x')
ROW(t.a, t.s) < ROW(1, 'x') | (t.a > 1) IS UNKNOWN | (t.a > 1) IS NOT TRUE | t.arr[1] | t.arr[:2] | (t.j)['a']['b']
t.a = ANY (ARRAY(SELECT 1)) | t.a NOT IN (1, 2) | ARRAY[]::int[] | CASE t.a WHEN 1 THEN 'x' ELSE 'y' END
current_time | localtimestamp(0) | current_user | interval '1' year | interval '1' day to second
interval(3) '1.2345' | B'101' | X'1F' | E'a\\nb\\\\c @ d' | $$it's ^ here$$ | - (-1) | @ t.a | + t.a | |/ 2.0
t.a ^ 2 | t.a::numeric(3,-2) | t.s::bit varying(3) | t.s::interval day to second(3) | t.s::regclass[] | t.s::mood[]
t.s::"char" | t.s IS NOT JSON ARRAY | t.a OPERATOR(pg_catalog.+) 1 | (ROW(1, 2)::odd_pair)."R"
make_interval(days => t.a) | format('%s', VARIADIC ARRAY[t.s]) | JSON_OBJECT() | JSON_OBJECT('a' : t.a)
JSON_OBJECT('a' VALUE t.value, 'b' : t.s ABSENT ON NULL WITH UNIQUE KEYS)
JSON_OBJECT('a' : NULL::text, 'c' : CASE WHEN t.a = 1 THEN NULL END RETURNING jsonb) | JSON_ARRAY()
JSON_ARRAY(t.a, t.s) | JSON_ARRAY(t.a, NULL::int NULL ON NULL RETURNING jsonb)
JSON_ARRAY(SELECT x FROM generate_series(1, 2) x) | JSON_ARRAY(t.s FORMAT JSON RETURNING varchar(20))
JSON(t.s WITH UNIQUE KEYS) | JSON_SCALAR(t.a) | JSON_SERIALIZE(t.s) | JSON_SERIALIZE(t.j RETURNING bytea)
JSON_QUERY(t.j, '$.a') | JSON_QUERY(t.j, '$.a' WITH CONDITIONAL WRAPPER)
JSON_QUERY(t.j, '$.a' RETURNING text OMIT QUOTES)
JSON_QUERY(t.j, '$.a' WITH WRAPPER EMPTY ARRAY ON EMPTY NULL ON ERROR)
JSON_QUERY(t.j, '$.a ? (@ > $x)' PASSING t.a AS x) | JSON_VALUE(t.j, '$.a' RETURNING timestamp with time zone)
JSON_VALUE(t.j, '$.a' RETURNING int DEFAULT 3 ON EMPTY ERROR ON ERROR)
JSON_VALUE(t.j, '$' PASSING t.a AS "X", t.s AS y) | JSON_EXISTS(t.j, '$.a ? (@ > $x)' PASSING t.a AS x TRUE ON ERROR)
JSON_ARRAYAGG(t.a ORDER BY t.s DESC NULL ON NULL) | JSON_ARRAYAGG(t.a RETURNING jsonb) FILTER (WHERE t.a > 1)
JSON_ARRAYAGG(t.a) OVER (ORDER BY t.s) | JSON_OBJECTAGG(t.s VALUE t.a ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb)
string_agg(DISTINCT t.s, ',' ORDER BY t.s) | percentile_cont(0.5) WITHIN GROUP (ORDER BY t.a)
sum(t.a) OVER (ORDER BY t.a GROUPS 1 PRECEDING EXCLUDE TIES)
"""

UNFAITHFUL = {
    "COLLATION FOR (t.s)": "its answer is not one of the values alone, so it would be FULL anyway",
    "XMLPARSE(CONTENT t.s)": "SQL/XML: PostgreSQL is rarely built with it",
    "XMLSERIALIZE(CONTENT t.xm AS text)": "SQL/XML",
    "XMLROOT(t.xm, VERSION '1.0', STANDALONE YES)": "SQL/XML",
    "XMLEXISTS('//a' PASSING t.xm)": "SQL/XML",
}


@pytest.fixture(scope="module")
def conn(tables: psycopg.Connection) -> Iterator[psycopg.Connection]:
    tables.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE odd_pair AS (l int, \"R\" text)")
    yield tables
    tables.execute("DROP TYPE mood; DROP TYPE odd_pair")


def survives(conn: psycopg.Connection, expressions: list[str]) -> bool | None:
    """Whether a SELECT of these is carried faithfully; None when PostgreSQL does not take it."""
    items = ", ".join(f"{e} AS x{i}" for i, e in enumerate(expressions))
    with scratch(conn, {}, None) as asking:
        try:
            canonical = describe(asking, f"SELECT {items} FROM {ROW}").canonical
        except UserError:
            return None
        tree = parse_query(canonical)
        return tree is not None and Compiler(qualified(asking)).round_trips(canonical, tree)


def lost(conn: psycopg.Connection, expressions: list[str]) -> tuple[list[str], int]:
    """The expressions that do not survive, and how many do. Most do, so they are tried in batches first."""
    found, good = list[str](), 0
    for start in range(0, len(expressions), BATCH):
        batch = expressions[start : start + BATCH]
        if survives(conn, batch):
            good += len(batch)
            continue
        for expression in batch:
            verdict = survives(conn, [expression])
            good += verdict is True
            found += [expression] if verdict is False else []
    return found, good


def call(name: str, kind: str, variadic: bool, aggregate: str | None, direct: int | None, types: list[str]) -> str:
    values = [f"NULL::{POLYMORPHIC.get(t, t)}" for t in types]
    if variadic:
        values[-1] = f"VARIADIC {values[-1] if types[-1].endswith(('[]', 'array')) else 'ARRAY[1]'}"
    function = f'pg_catalog."{name}"'
    if aggregate in ("o", "h"):
        return f"{function}({', '.join(values[:direct])}) WITHIN GROUP (ORDER BY {', '.join(values[direct:]) or '1'})"
    if kind == "a":
        return f"{function}({', '.join(values) or '*'})"
    return f"{function}({', '.join(values)}){' OVER ()' if kind == 'w' else ''}"


def test_every_function(conn: psycopg.Connection) -> None:
    rows = conn.execute(FUNCTIONS).fetchall()
    calls = {kind: [call(*row) for row in rows if (row[1] == "f") == (kind == "f")] for kind in ("f", "aggregates")}
    for some in calls.values():
        bad, good = lost(conn, some)
        assert not bad
        assert good > len(some) * 0.97


def test_every_operator(conn: psycopg.Connection) -> None:
    expressions = []
    for name, left, right in conn.execute(OPERATORS).fetchall():
        first = f"t.a::text::{POLYMORPHIC.get(left, left)}" if left else ""
        expressions.append(f"({first} {name} t.a::text::{POLYMORPHIC.get(right, right)})")
    bad, good = lost(conn, expressions)
    assert not bad
    assert good > len(expressions) * 0.97


def test_every_type(conn: psycopg.Connection) -> None:
    types = [t for (t,) in conn.execute(TYPES).fetchall()]
    assert "mood[]" in types
    bad, good = lost(conn, [e for t in types for e in (f"NULL::{t}", f"(t.a::text::{t} IS NULL)")])
    assert not bad
    assert good > len(types) * 1.9


def test_special_syntax(conn: psycopg.Connection) -> None:
    expressions = [e.strip() for line in SYNTAX.strip().splitlines() for e in line.split(" | ")]
    verdicts = {e: survives(conn, [e]) for e in expressions}
    assert {e: v for e, v in verdicts.items() if not v} == {}


@pytest.mark.parametrize("expression", UNFAITHFUL)
def test_what_does_not_survive_is_listed(conn: psycopg.Connection, expression: str) -> None:
    assert survives(conn, [expression]) is False
