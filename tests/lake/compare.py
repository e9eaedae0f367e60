"""Rows of PostgreSQL and rows of DuckDB as equal Python values, and as multisets."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from tests.lake.duck import Duck

Row = tuple[Any, ...]
Bag = Counter[Row]

# What the lake keeps as text is compared as text: PostgreSQL's own for types of its own, sorted JSON for JSON.
AS_JSON = "CASE WHEN {0} IS NOT NULL THEN to_jsonb({0})::text END"
AS_TEXT = "{0}::text"
AS_IS = "{0}"
IS = {"bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "time", "timestamp", "timestamptz", "uuid"}
IS |= {"bytea", "text", "varchar"}


def pg_columns(conn: psycopg.Connection[Any], table: str) -> list[tuple[str, str]]:
    """Names and types of a table's columns, in order."""
    return conn.execute(
        "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (table,),
    ).fetchall()


def pg_bag(conn: psycopg.Connection[Any], table: str) -> Bag:
    """A table's rows in PostgreSQL."""
    columns = pg_columns(conn, table)
    shown = sql.SQL(", ").join(sql.SQL(_shown(kind)).format(sql.Identifier(name)) for name, kind in columns)
    query = sql.SQL("SELECT {} FROM {}").format(shown, sql.SQL(table))
    return _bag(conn.execute(query).fetchall(), columns)


def duck_bag(conn: psycopg.Connection[Any], duck: Duck, table: str, source: str | None = None) -> Bag:
    """The rows of a lake table or view, with the columns that `table` has in PostgreSQL."""
    columns = pg_columns(conn, table)
    return _bag(duck.rows(f"SELECT {duck_list(columns)} FROM {source or table}"), columns)


def duck_weights(conn: psycopg.Connection[Any], duck: Duck, table: str, source: str, weight: str) -> Bag:
    """Rows of a lake table with the sums of their weights, without those that come to nothing."""
    columns = pg_columns(conn, table)
    total: Bag = Counter()
    for row in duck.rows(f"SELECT {duck_list(columns)}, {weight} FROM {source}"):
        total[_plain_row(row[:-1], columns)] += row[-1]
    return Counter({row: n for row, n in total.items() if n})


def duck_list(columns: Sequence[tuple[str, str]]) -> str:
    return ", ".join('"' + name.replace('"', '""') + '"' for name, _ in columns)


def delta(before: Bag, after: Bag) -> Bag:
    """What must be added to `before` to get `after`; negative counts are removals."""
    return Counter({row: n for row in before | after if (n := after[row] - before[row])})


def assert_equal(lake: Bag, postgres: Bag, what: str) -> None:
    """Two multisets are the same, or the first differences are shown."""
    odd = delta(postgres, lake)
    shown = "\n".join(f"  {'+' if n > 0 else ''}{n} {row}" for row, n in list(odd.items())[:6])
    assert not odd, f"{what}: in the lake, compared with PostgreSQL ({len(odd)} rows differ):\n{shown}"


def _shown(kind: str) -> str:
    if kind in {"json", "jsonb"} or kind.startswith("_"):
        return AS_JSON
    return AS_IS if kind in IS else AS_TEXT


def _bag(rows: Iterable[Row], columns: Sequence[tuple[str, str]]) -> Bag:
    return Counter(_plain_row(row, columns) for row in rows)


def _plain_row(row: Row, columns: Sequence[tuple[str, str]]) -> Row:
    return tuple(_plain(value, kind) for value, (_, kind) in zip(row, columns, strict=True))


def _plain(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind in {"json", "jsonb"} or kind.startswith("_"):
        return json.dumps(json.loads(value), sort_keys=True)
    if isinstance(value, float):
        value = struct.unpack("f", struct.pack("f", value))[0] if kind == "float4" else value
        return "NaN" if math.isnan(value) else value
    if isinstance(value, Decimal):
        return "NaN" if value.is_nan() else value
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, (memoryview, bytearray)):
        return bytes(value)
    return value
