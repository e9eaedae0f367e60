"""A lake's table as DuckDB reads it from DuckLake, and as readers of Iceberg read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import duckdb
import psycopg

from tests.iceberg.clients import read
from tests.lake.duck import Duck
from tests.lake.rows import comparable, from_arrow

Bag = Counter[Any]


def columns_at(table: Any, snapshot: int) -> list[str]:
    """The columns that Iceberg shows at a snapshot."""
    found = table.metadata.snapshot_by_id(snapshot)
    return [field.name for field in table.metadata.schema_by_id(found.schema_id).fields]


def by_ducklake(duck: Duck, name: str, snapshot: int, columns: Sequence[str]) -> Bag:
    return Counter(comparable(row) for row in duck.rows(_select(name, snapshot, columns)))


def by_duckdb(conn: duckdb.DuckDBPyConnection, name: str, snapshot: int, columns: Sequence[str]) -> Bag:
    return Counter(comparable(row) for row in conn.execute(_select(name, snapshot, columns)).fetchall())


def by_pyiceberg(table: Any, snapshot: int) -> Bag:
    return Counter(from_arrow(read(table, snapshot)))


def assert_same(
    duck: Duck,
    table: Any,
    ice: duckdb.DuckDBPyConnection,
    name: str,
    snapshots: Iterable[int],
    what: Callable[[], str],
) -> int:
    """At every snapshot all readers give the same rows; how many snapshots were compared."""
    count = 0
    for at in snapshots:
        columns = columns_at(table, at)
        wanted = by_ducklake(duck, name, at, columns)
        for reader, got in (
            ("PyIceberg", by_pyiceberg(table, at)),
            ("DuckDB", by_duckdb(ice, f"ice.main.{name}", at, columns)),
        ):
            assert got == wanted, (
                f"{reader} at {at}: unexpected {list((got - wanted).items())[:2]}, missing "
                f"{list((wanted - got).items())[:2]}\n{what()}"
            )
        count += 1
    return count


def damaged(conn: psycopg.Connection[Any], at: int) -> bool:
    """Whether DuckDB has written what it reads wrongly itself: two live delete files of one data file."""
    found = conn.execute(
        "SELECT 1 FROM ducklake.ducklake_delete_file WHERE begin_snapshot <= %(at)s"
        " AND (end_snapshot IS NULL OR end_snapshot > %(at)s) GROUP BY data_file_id HAVING count(*) > 1",
        {"at": at},
    )
    return found.fetchone() is not None


def _select(name: str, snapshot: int, columns: Sequence[str]) -> str:
    names = ", ".join('"' + column.replace('"', '""') + '"' for column in columns)
    return f"SELECT {names} FROM {name} AT (VERSION => {snapshot})"
