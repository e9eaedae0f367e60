"""TPC-H for several engines: the data in a lake, and each query in each engine's words."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

from runnel.lake.duck import connect, extension
from tests.lake.duck import Duck

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
RELATIVE = 1e-9
"""How far two sums of doubles may be apart: they are added up in another order."""

Row = tuple[Any, ...]


def load(duck: Duck, schema: str, scale: float, tables: Sequence[str] = TABLES) -> None:
    """Generate the data and write it to tables of the lake."""
    duck.run(f"LOAD '{extension('tpch')}'")
    duck.run(f"CALL dbgen(sf = {scale}, catalog = 'memory', schema = 'main')")
    duck.run(f"CREATE SCHEMA lake.{schema}")
    for name in tables:
        duck.run(f"CREATE TABLE lake.{schema}.{name} AS FROM memory.main.{name}")
    for name in TABLES:
        duck.run(f"DROP TABLE memory.main.{name}")


def queries() -> dict[int, exp.Expression]:
    """The 22 queries as DuckDB has them.

    The average of decimals has other digits in each engine, and some queries compare with it: it is one of doubles.
    A name of the SELECT list in GROUP BY is not for everybody.
    """
    with connect("tpch") as conn:
        texts = conn.execute("SELECT query_nr, query FROM tpch_queries() ORDER BY 1").fetchall()
    found = {}
    for number, text in texts:
        query = sqlglot.parse_one(text, read="duckdb")
        for average in query.find_all(exp.Avg):
            average.set("this", exp.cast(average.this, "double"))
        for select in query.find_all(exp.Select):
            _spell_out_groups(select)
        found[number] = query
    return found


def _spell_out_groups(select: exp.Select) -> None:
    meant = {each.alias: each.this for each in select.expressions if isinstance(each, exp.Alias)}
    group = select.args.get("group")
    for column in list(group.expressions) if group else []:
        if isinstance(column, exp.Column) and not column.table and column.name in meant:
            column.replace(meant[column.name].copy())


def assert_equal(got: Sequence[Row], wanted: Sequence[Row], what: str) -> None:
    """The same rows, in any order; numbers to the digits that an engine gives."""
    assert len(got) == len(wanted), f"{what}: {len(got)} rows, not {len(wanted)}"
    rest = sorted(got, key=_key)
    for row, other in zip(rest, sorted(wanted, key=_key), strict=True):
        assert all(_same(a, b) for a, b in zip(row, other, strict=True)), f"{what}: {row}, not {other}"


def _key(row: Row) -> tuple[str, ...]:
    """Texts first: numbers may differ in their last digits."""
    shown = [f"{_number(each):030.1f}" if _number(each) is not None else f" {each}".rstrip() for each in row]
    return tuple(sorted(shown, key=lambda each: not each.startswith(" ")))


def _same(got: Any, wanted: Any) -> bool:
    if got is None or wanted is None:
        return got is wanted
    a, b = _number(got), _number(wanted)
    if a is None or b is None:
        return str(got).rstrip() == str(wanted).rstrip()
    digits = max(_unit(got), _unit(wanted))
    return abs(a - b) <= digits / 2 + abs(b) * Decimal(RELATIVE)


def _number(value: Any) -> Decimal | None:
    """Trino and the Spark worker give decimals as texts; phone numbers and dates are none."""
    if isinstance(value, int | float | Decimal):
        return Decimal(str(value))
    if isinstance(value, str) and value.replace(".", "", 1).removeprefix("-").isdigit() and "." in value:
        return Decimal(value)
    return None


def _unit(value: Any) -> Decimal:
    """One of the last digit of a decimal; the others are exact, or compared as doubles."""
    if isinstance(value, str | Decimal):
        exponent = Decimal(value).as_tuple().exponent
        return Decimal(1).scaleb(exponent) if isinstance(exponent, int) else Decimal(0)
    return Decimal(0)
