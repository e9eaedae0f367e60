"""A stream table's rows for notebooks: as Arrow, pandas, Polars, or a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    import pyarrow as pa

Connection = psycopg.Connection[Any]
T = TypeVar("T")

BATCH = 50_000
SHOWN = 20

COLUMNS = """
SELECT a.attname::text, t.typname::text, a.atttypmod FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one stream table, read when asked for: each call sees what is committed then."""

    name: str
    _oid: int
    _relation: sql.Composable
    _open: Callable[[], AbstractContextManager[Connection]]

    def arrow(self) -> pa.Table:
        """All rows. Numbers keep their digits; what Arrow has no type for is text, as PostgreSQL prints it."""
        import pyarrow as pa

        with self._open() as conn, conn.transaction():
            columns = [
                (name, _arrow_type(kind, modifier)) for name, kind, modifier in conn.execute(COLUMNS, (self._oid,))
            ]
            schema = pa.schema([(name, kind or pa.string()) for name, kind in columns])
            items = sql.SQL(", ").join(
                sql.Identifier(name) if kind is not None else sql.SQL("{}::text").format(sql.Identifier(name))
                for name, kind in columns
            )
            query = sql.SQL("SELECT {} FROM {}").format(items, self._relation)
            with conn.cursor(name="runnel_rows") as cursor:
                cursor.itersize = BATCH
                cursor.execute(query)
                return pa.Table.from_batches(list(_batches(cursor, schema)), schema)

    def pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """All rows as a Polars DataFrame; Polars must be installed."""
        from importlib import import_module

        return import_module("polars").from_arrow(self.arrow())

    def spark(self, session: Any) -> Any:
        """All rows as a DataFrame of a Spark session of one's own."""
        return session.createDataFrame(self.arrow())

    def _repr_html_(self) -> str:
        """The first rows, for Jupyter."""
        with self._open() as conn:
            query = sql.SQL("SELECT * FROM {} LIMIT {}").format(self._relation, SHOWN + 1)
            cursor = conn.execute(query)
            names = [column.name for column in cursor.description or ()]
            found = cursor.fetchall()
        more = "" if len(found) <= SHOWN else f"<p>The first {SHOWN} rows of {escape(self.name)}.</p>"
        return html_table(names, found[:SHOWN]) + more


def html_table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table for notebooks; whatever is in it is text.

    >>> html_table(["a"], [["<b>"]])
    '<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{'' if value is None else escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Shown(list[T]):
    """A list of answers that Jupyter shows as a table."""

    def _repr_html_(self) -> str:
        if not self:
            return "<p>None.</p>"
        names = [field.name for field in fields(self[0])]  # type: ignore[arg-type]
        return html_table(names, [[getattr(each, name) for name in names] for each in self])


class Plan(str):
    """A plan, which Jupyter shows as it is drawn."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.3">{escape(self)}</pre>'


def _batches(cursor: psycopg.ServerCursor[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    while rows := cursor.fetchmany(BATCH):
        arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _arrow_type(kind: str, modifier: int) -> pa.DataType | None:
    """The type that holds all values of a PostgreSQL type, or None: then text does."""
    import pyarrow as pa

    if kind == "numeric" and modifier > 0:
        precision, scale = (modifier - 4) >> 16, ((modifier - 4) & 0x7FF ^ 1024) - 1024
        return pa.decimal128(precision, scale) if precision <= 38 and 0 <= scale <= precision else None
    plain: dict[str, Callable[[], pa.DataType]] = {
        "bool": pa.bool_, "int2": pa.int16, "int4": pa.int32, "int8": pa.int64, "float4": pa.float32,
        "float8": pa.float64, "text": pa.string, "varchar": pa.string, "date": pa.date32,
        "timestamp": lambda: pa.timestamp("us"), "timestamptz": lambda: pa.timestamp("us", "UTC"),
    }  # fmt: skip
    return plain[kind]() if kind in plain else None
