"""Random tables: with and without keys, partitioned, with generated columns and traces of dropped ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.oracle.values import SQL_TYPES, Col, chance, pick, value

KINDS = ("int", "text", "money", "int", "bigint", "numeric", "bool", "timestamptz", "date", "float8", "ints", "jsonb")
NAMES = ("a", "b", "c", "d", '"Total ""x"""')


@dataclass(frozen=True)
class Table:
    """A table as the history needs to know it."""

    name: str
    ddl: Sequence[str]
    columns: Sequence[Col]
    writable: Sequence[Col]
    keyed: bool


def table(draw: st.DrawFn, name: str) -> Table:
    """A table of 2 to 5 columns; the first is always an int, so that any two tables can be joined."""
    keyed = draw(st.booleans())
    first = Col("id", "int") if keyed else Col("k", "int")
    count = draw(st.integers(1, 4))
    columns = [first, *(Col(NAMES[i], pick(draw, KINDS)) for i in range(count))]
    partitioned = chance(draw, 10)
    dropped = chance(draw, 8)
    items = [f"{c.sql} {SQL_TYPES[c.kind]}" for c in columns]
    if keyed:
        items[0] += " PRIMARY KEY"
    if dropped:
        items.insert(1, "gone text")
    writable = list(columns)
    if chance(draw, 10):
        items.append(f"g int GENERATED ALWAYS AS ({first.sql} % 3) STORED")
        columns.append(Col("g", "int"))
    ddl = [f"CREATE TABLE {name} ({', '.join(items)})"]
    if partitioned:
        ddl[0] += f" PARTITION BY RANGE ({first.sql})"
        ddl.append(f"CREATE TABLE {name}_low PARTITION OF {name} FOR VALUES FROM (MINVALUE) TO (3)")
        ddl.append(f"CREATE TABLE {name}_high PARTITION OF {name} FOR VALUES FROM (3) TO (MAXVALUE)")
        ddl.append(f"CREATE TABLE {name}_rest PARTITION OF {name} DEFAULT")
    if dropped:
        ddl.append(f"ALTER TABLE {name} DROP COLUMN gone")
    return Table(name, ddl, columns, writable, keyed)


def rows(draw: st.DrawFn, table: Table, least: int, most: int, *, first_key: int = 0) -> str | None:
    """An INSERT of some rows, or None for no rows. Equal rows are likely where no key forbids them."""
    count = draw(st.integers(least, most))
    if count == 0:
        return None
    tuples = []
    for number in range(count):
        items = [_cell(draw, c) for c in table.writable]
        if table.keyed:
            items[0] = str(first_key + number)
        tuples.append(f"({', '.join(items)})")
    if not table.keyed and chance(draw, 30):
        tuples.append(tuples[0])
    names = ", ".join(c.sql for c in table.writable)
    return f"INSERT INTO {table.name} ({names}) VALUES {', '.join(tuples)}"


def _cell(draw: st.DrawFn, column: Col) -> str:
    if chance(draw, 15):
        return "NULL"
    return value(draw, column.kind, finite=not chance(draw, 15))
