"""The view that shows a stream table's current rows in the lake, whatever the mode of its sink."""

from __future__ import annotations

import json
from collections.abc import Sequence

from runnel.lake.write.views import CATALOG
from runnel.model.names import quote
from runnel.ports.sink import Result
from runnel.sinks.ducklake.catalog import LakeSink
from runnel.sinks.reading import ACTION


def view_sql(sink: LakeSink, columns: Sequence[str]) -> str:
    """The view's SELECT, in DuckDB's SQL.

    >>> view_sql(LakeSink(pgt_id=1, sink="ducklake", lake="lake", lake_schema="main", view_name="v"), ["a"])
    'SELECT "a" FROM {DUCKLAKE_CATALOG}."main"."v__rows"'
    """
    names = ", ".join(quote(c) for c in columns)
    table = f"{CATALOG}.{quote(sink.lake_schema)}.{quote(sink.table_name)}"
    if sink.mode != "append":
        return f"SELECT {names} FROM {table}"
    # Inserted minus deleted copies of each row; what is left is repeated.
    net = f"sum(CASE {quote(ACTION)} WHEN 'insert' THEN 1 ELSE -1 END)"
    counted = f"SELECT {names}, {net} AS __copies FROM {table} GROUP BY {names} HAVING {net} > 0"
    return f"SELECT {names} FROM (SELECT {names}, unnest(range(__copies::BIGINT)) AS __copy FROM ({counted}))"


def view_tags(sink: LakeSink, result: Result, sources: Sequence[tuple[str, int]]) -> dict[str, str]:
    """What the view says about itself; `sources` are names and oids of what the query reads."""
    return {
        "comment": result.query,
        "pg_trickle.query": result.query,
        "pg_trickle.sources": json.dumps([{"name": name, "oid": oid} for name, oid in sources]),
        "pg_trickle.mode": sink.mode,
        "pg_trickle.stream_table": str(result.name),
    }
