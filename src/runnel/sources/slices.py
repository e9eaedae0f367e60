"""Whole tables read by Spark's tasks: each takes a slice of pages, in the refresh's own snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Frame, Totals, leaf_schema
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
        owner = self.reading.as_owner
        types = binary_types(schema)
        queries: list[str] = []
        for name, pages in self._size(relation.oid)[1]:
            for start in range(0, max(pages, 1), _SLICE_PAGES):
                end = start + _SLICE_PAGES
                upper = "" if end >= pages else f" AND r.ctid < '({end},0)'::tid"
                where = f"r.ctid >= '({start},0)'::tid{upper}"
                query = (
                    after_query(leaf, name, self.reading.clock, where=where)
                    if totals is None
                    else totals_query(leaf, name, self.reading.clock, totals, where)
                )
                queries.append(owner.typed_select_sql(query.text, query.params or {"none": None}, types))
        slices = Slices(self.reading.dsn, self._snapshot(), owner.settings, schema, queries)
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
