"""Rows lent to PostgreSQL: copied to temporary tables, where it evaluates filters and expressions over them.

The columns have the types of the stand-in, so every expression means what it means in the query. Tables are made once
per session and emptied before they are filled again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa

from runnel.catalog.temporary import drop_temporary
from runnel.lake.read.copytext import as_text
from runnel.model.names import Name, quote
from runnel.model.types import Column
from runnel.sources.statements import WEIGHT
from runnel.transport import render_csv

_CHUNK = 65_536
_TRUNCATE_AFTER = 5_000
_OF_STREAM_TABLE = re.compile(r"pgt_lent_(?:rows|delta)_(\d+)_")
_OF_RELATION = re.compile(r"pgt_lent_(\d+)$")


@dataclass
class Lent:
    """The tables of lent rows of one session."""

    _made: dict[Name, tuple[str, ...]] = field(default_factory=dict)
    """Per table its columns and who may read it."""
    _dead: dict[Name, int] = field(default_factory=dict)
    """Rows of a table since it was last truncated, deleted ones included."""
    _copied: Callable[[int], None] | None = None

    def counted(self, copied: Callable[[int], None]) -> Lent:
        """The same tables; `copied` is told how many rows go there."""
        return replace(self, _copied=copied)

    def fill(
        self,
        conn: psycopg.Connection[Any],
        name: Name,
        columns: Sequence[Column],
        batches: Iterable[pa.RecordBatch],
        owner: str,
        *,
        weighted: bool = False,
        absent: Container[str] = (),
    ) -> int:
        """Replace the rows of a table; how many. Batches hold the columns in order, then the weight.

        Columns that are absent from the batches are NULL.
        """
        items = [f"{quote(c.name)} {c.type.sql}" for c in columns]
        if weighted:
            items.append(f"{WEIGHT} int8")
        self._prepare(conn, name, (*items, owner))
        present = [quote(c.name) for c in columns if c.name not in absent]
        listed = ", ".join([*present, *([WEIGHT] if weighted else [])])
        count = 0
        if not listed:
            raise ValueError("a table of lent rows needs a column")
        statement = f"COPY {name.sql()} ({listed}) FROM STDIN (FORMAT csv)".encode()
        with conn.cursor() as cursor, cursor.copy(statement) as copy:
            for batch in batches:
                for start in range(0, batch.num_rows, _CHUNK):
                    part = batch.slice(start, _CHUNK)
                    count += part.num_rows
                    copy.write(render_csv(as_text(part)))
        self._dead[name] = self._dead.get(name, 0) + count
        if self._copied is not None:
            self._copied(count)
        return count

    def keep_only(self, conn: psycopg.Connection[Any], tables: Container[int], relations: Container[int]) -> None:
        """Drop those of all other stream tables and relations."""
        gone = drop_temporary(conn, _OF_STREAM_TABLE, tables.__contains__)
        gone += drop_temporary(conn, _OF_RELATION, relations.__contains__)
        for name in gone:
            self._made.pop(Name("pg_temp", name), None)
            self._dead.pop(Name("pg_temp", name), None)

    def forget(self) -> None:
        """The session is gone, or was rolled back to before its tables were made."""
        self._made.clear()
        self._dead.clear()

    def _prepare(self, conn: psycopg.Connection[Any], name: Name, shape: tuple[str, ...]) -> None:
        if self._made.get(name) == shape:
            # A truncation is a change of the system catalog: too dear for a few rows.
            if self._dead.get(name, 0) > _TRUNCATE_AFTER:
                conn.execute(f"TRUNCATE {name.sql()}".encode())
                self._dead[name] = 0
            else:
                conn.execute(f"DELETE FROM {name.sql()}".encode())
            return
        *items, owner = shape
        conn.execute(f"DROP TABLE IF EXISTS {name.sql()}".encode())
        conn.execute(f"CREATE TEMP TABLE {quote(name.name)} ({', '.join(items)})".encode())
        conn.execute(f"GRANT SELECT ON {name.sql()} TO {quote(owner)}".encode())
        self._made[name] = shape
        self._dead[name] = 0
