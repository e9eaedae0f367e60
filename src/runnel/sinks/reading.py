"""Rows on their way out: read from PostgreSQL with the owner's rights, made into batches of a lake's types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa

from runnel.catalog.owner import AsOwner, as_owner
from runnel.lake.format.model import LakeColumn
from runnel.lake.write.pgtext import text_schema, to_lake
from runnel.ports.sink import Refreshed
from runnel.sinks.columns import SETTINGS, PublishedColumn, identities, unreadable
from runnel.sinks.numbers import Numbers
from runnel.transport import stream_csv

ACTION, REFRESH_ID, REFRESHED_AT = "__action", "__refresh_id", "__refreshed_at"
LOG_COLUMNS = ((ACTION, "varchar"), (REFRESH_ID, "int64"), (REFRESHED_AT, "timestamptz"))
"""What a log says about each row, with the lake's types."""

_HASHES = (("h", pa.int64()), ("h2", pa.int64()))


def reader(conn: psycopg.Connection[Any], role: str) -> AsOwner:
    """The way to read a stream table of that role, in the transaction on the connection."""
    owner = as_owner(conn, role, SETTINGS)
    owner.pin()
    return owner


@dataclass
class Reading:
    """Rows of a SELECT (columns o<i>) as the lake's batches; their hashes are kept while they pass."""

    owner: AsOwner
    columns: Sequence[PublishedColumn]
    lake_columns: Sequence[LakeColumn]
    hashed: bool = True
    hashes: Numbers = field(default_factory=lambda: Numbers(2))
    """The rows' hashes, in the order in which the rows came."""

    def batches(self, select: str, constants: Sequence[tuple[str, pa.DataType]] = ()) -> Iterator[pa.RecordBatch]:
        """The rows; `constants` are further columns of the SELECT, which follow the published ones as they are."""
        names = [f"s.o{i}" for i in range(len(self.columns))]
        items = [column.read_sql(name) for column, name in zip(self.columns, names, strict=True)]
        items += [f"s.{name}" for name, _ in constants]
        items += identities(self.columns, names) if self.hashed else []
        extra = [*constants, *(_HASHES if self.hashed else ())]
        schema = text_schema(self.lake_columns, extra)
        types = [column.read_type for column in self.columns]
        types += ["text" for _ in constants] + ["int8" for _ in (_HASHES if self.hashed else ())]
        chunks = self.owner.csv(f"SELECT {', '.join(items)} FROM ({select}) AS s", types)
        try:
            for batch in stream_csv(chunks, schema):
                if self.hashed:
                    self.hashes.add(batch.column("h").to_numpy(), batch.column("h2").to_numpy())
                rows = to_lake(batch, self.lake_columns)
                for name, _ in constants:
                    rows = rows.append_column(name, batch.column(name))
                yield rows
        except pa.ArrowInvalid as error:
            raise unreadable(self.columns, error) from error


def changes_sql(columns: int, delta: str) -> str:
    """A delta's rows, each as often as its weight says, with what happened to them."""
    names = ", ".join(f"o{i}" for i in range(columns))
    action = "CASE WHEN w > 0 THEN 'insert' ELSE 'delete' END AS action"
    return f"SELECT {names}, {action} FROM {delta}, generate_series(1, abs(w))"


def logged(batches: Iterable[pa.RecordBatch], refreshed: Refreshed) -> Iterator[pa.RecordBatch]:
    """Rows with their action, and with the refresh and its time behind that."""
    at = dt.datetime.fromisoformat(refreshed.at)
    for batch in batches:
        count = batch.num_rows
        numbered = batch.append_column("refresh", pa.repeat(pa.scalar(refreshed.id, pa.int64()), count))
        yield numbered.append_column("at", pa.repeat(pa.scalar(at, pa.timestamp("us", tz="UTC")), count))
