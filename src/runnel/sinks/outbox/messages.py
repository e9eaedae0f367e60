"""A refresh as messages: rows as JSON objects, in portions, deletions first.

A message says which rows came and which went. All that a reader needs to read their values again is with it: `columns`
in the headers has each column's name, its type, and its type in a lake. Values that are neither numbers, truth values,
texts, JSON nor arrays are texts in PostgreSQL's own notation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from runnel.catalog.owner import AsOwner, literal
from runnel.model.names import quote
from runnel.ports.sink import Refreshed, Result
from runnel.sinks.columns import PublishedColumn
from runnel.sinks.outbox.catalog import Attached

_TYPES = ("int8", "int8", "jsonb", "int8", "jsonb")
"""Of a portion: its number, how many rows came, which, how many went, which."""


def write_changes(
    owner: AsOwner, attached: Attached, result: Result, refreshed: Refreshed, columns: Sequence[PublishedColumn]
) -> None:
    """The delta of a refresh."""
    fields = _document(columns, [f"d.o{i}" for i in range(len(columns))])
    source = f"SELECT d.w, {fields} AS doc FROM {result.delta} AS d, generate_series(1, abs(d.w))"
    _write(owner, attached, result, refreshed, columns, source, reset=False)


def write_all(
    owner: AsOwner, attached: Attached, result: Result, refreshed: Refreshed, columns: Sequence[PublishedColumn]
) -> None:
    """All rows there are. The first message says that whatever was said before holds no more."""
    fields = _document(columns, [f"d.{quote(c.name)}" for c in columns])
    source = f"SELECT 1 AS w, {fields} AS doc FROM {result.name.sql()} AS d"
    _write(owner, attached, result, refreshed, columns, source, reset=True)


def _document(columns: Sequence[PublishedColumn], values: Sequence[str]) -> str:
    """A row as JSON; text is what lakes would have as text."""
    named = (
        f"{f'({value})::text' if column.lake == 'varchar' else value} AS {quote(column.name)}"
        for column, value in zip(columns, values, strict=True)
    )
    return f"(SELECT to_jsonb(r) FROM (SELECT {', '.join(named)}) AS r)"


def _write(
    owner: AsOwner,
    attached: Attached,
    result: Result,
    refreshed: Refreshed,
    columns: Sequence[PublishedColumn],
    source: str,
    *,
    reset: bool,
) -> None:
    portion = f"(row_number() OVER (ORDER BY w) - 1) / {attached.rows}"
    select = (
        "SELECT part, count(*) FILTER (WHERE w > 0), coalesce(jsonb_agg(doc) FILTER (WHERE w > 0), '[]'), "
        "count(*) FILTER (WHERE w < 0), coalesce(jsonb_agg(doc) FILTER (WHERE w < 0), '[]') "
        f"FROM (SELECT w, doc, {portion} AS part FROM ({source}) AS s) AS p GROUP BY part"
    )
    portions = owner.select_sql(select, _TYPES)
    if reset:
        # An empty stream table has a beginning, too.
        portions = f"{portions} UNION ALL SELECT -1, 0, '[]', 0, '[]'"
    headers = {
        "event_type": "stream_table.reset" if reset else "stream_table.changed",
        "x-source": "runnel",
        "x-outbox": attached.name,
        "refresh_id": refreshed.id,
        "definition_version": result.definition_version,
        "columns": [c.as_json for c in columns],
    }
    beginning = ", 'reset', q.part = -1" if reset else ""
    said = {"v": 1, "stream_table": str(result.name), "refresh_id": refreshed.id, "at": refreshed.at}
    owner.conn.execute(
        (
            "INSERT INTO tide.tide_outbox_messages (outbox_name, payload, headers) "
            f"SELECT {literal(attached.name)}, {literal(json.dumps(said))}::jsonb || jsonb_build_object("
            "'part', q.part, 'inserted_count', q.came, 'deleted_count', q.went, 'inserted', q.inserted, "
            f"'deleted', q.deleted{beginning}), "
            f"{literal(json.dumps(headers))}::jsonb "
            f"FROM ({portions}) AS q (part, came, inserted, went, deleted) ORDER BY q.part"
        ).encode()
    )
    if owner.runner is not None:
        owner.tidy()
