"""Whole tables read by Spark's tasks: each takes a slice of pages, in the refresh's own snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Frame, Query, Totals, leaf_schema
from runnel.ports.source import Reading
from runnel.sources.arrow import binary_types
from runnel.sources.statements import after_query, totals_query
from runnel.spark.slices import Slices, slices_frame

# A slice of a table that one task reads: 64 MiB of pages.
_SLICE_PAGES = 8192

_PARTS = """
WITH RECURSIVE below(oid) AS (
    SELECT %s::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.oid)
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::float8
FROM below JOIN pg_class c ON c.oid = below.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'
"""


@dataclass
class WholeTables:
    """The tables that one stream table reads, as tasks read them."""

    reading: Reading
    _exported: str | None = None
    _sizes: dict[int, tuple[float, list[tuple[str, int]]]] = field(default_factory=dict)

    def estimate(self, relation: Relation) -> float:
        """About how many rows it has."""
        return self._size(relation.oid)[0]

    def frame(self, leaf: Leaf, relation: Relation) -> Frame:
        """A leaf over the whole relation."""
        return self._frame(leaf, relation, leaf_schema(leaf, weight=False), None)

    def totals(self, leaf: Leaf, relation: Relation, wanted: Totals) -> Frame:
        """A leaf over the whole relation, added up slice by slice."""
        return self._frame(leaf, relation, wanted.schema(leaf), wanted)

    def _frame(self, leaf: Leaf, relation: Relation, schema: pa.Schema, totals: Totals | None) -> Frame:
        clock = self.reading.clock
        queries = [
            after_query(leaf, name, clock, where=where)
            if totals is None
            else totals_query(leaf, name, clock, totals, where)
            for name, pages in self._size(relation.oid)[1]
            for where in _conditions(pages)
        ]
        return self._read(queries, schema)

    def changes(self, leaf: Leaf, buffer: str, select: Callable[[str], Query]) -> Frame:
        """What changed in a leaf, from a table of changes; `select` reads the rows that a condition on `r` keeps."""
        return self._read([select(where) for where in self._buffer_slices(buffer)], leaf_schema(leaf, weight=True))

    def change_totals(self, leaf: Leaf, buffer: str, select: Callable[[str], Query], wanted: Totals) -> Frame:
        """The same added up."""
        return self._read([select(where) for where in self._buffer_slices(buffer)], wanted.schema(leaf))

    def _buffer_slices(self, buffer: str) -> list[str]:
        row = self.reading.conn.execute(
            "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int8", (buffer,)
        ).fetchone()
        assert row is not None
        return _conditions(int(row[0]))

    def _read(self, queries: Sequence[Query], schema: pa.Schema) -> Frame:
        owner = self.reading.as_owner
        types = binary_types(schema)
        texts = [owner.typed_select_sql(query.text, query.params or {"none": None}, types) for query in queries]
        slices = Slices(self.reading.dsn, self._snapshot(), owner.settings, schema, texts)
        return slices_frame(self.reading.spark, slices)

    def _snapshot(self) -> str:
        if self._exported is None:
            row = self.reading.conn.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            self._exported = str(row[0])
        return self._exported

    def _size(self, oid: int) -> tuple[float, list[tuple[str, int]]]:
        """Estimated rows, and the physical relations with their pages."""
        if oid not in self._sizes:
            found = self.reading.conn.execute(_PARTS, (oid,)).fetchall()
            only = "ONLY " if len(found) > 1 else ""
            # A table that was never analysed has no row count: assume rows of a hundred bytes.
            rows = sum(tuples if tuples > 0 else pages * 80.0 for _, pages, tuples in found)
            self._sizes[oid] = rows, [(only + name, int(pages)) for name, pages, _ in found]
        return self._sizes[oid]


def _conditions(pages: int) -> list[str]:
    """Slices of a table with so many pages, as conditions on its rows `r`; the last one has no end."""
    found = []
    for start in range(0, max(pages, 1), _SLICE_PAGES):
        end = start + _SLICE_PAGES
        upper = "" if end >= pages else f" AND r.ctid < '({end},0)'::tid"
        found.append(f"r.ctid >= '({start},0)'::tid{upper}")
    return found
