"""Tables cut into slices of pages, so that other sessions read them side by side in the refresh's own snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Frame, Query
from runnel.ports.source import Reading
from runnel.sources.arrow import binary_types
from runnel.sources.statements import after_query
from runnel.spark.slices import Slices, slices_frame

# A slice is at least 8 MiB of pages: a smaller one costs its task more than it saves.
_LEAST_PAGES = 1024

_PARTS = """
WITH RECURSIVE below(oid) AS (
    SELECT %(oid)s::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.oid)
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::float8,
       has_table_privilege(%(role)s, c.oid, 'SELECT')
FROM below JOIN pg_class c ON c.oid = below.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'
"""


@dataclass
class WholeTables:
    """The tables that one stream table reads, with their sizes."""

    reading: Reading
    _sizes: dict[int, tuple[float, list[tuple[str, int]]]] = field(default_factory=dict)

    def estimate(self, relation: Relation) -> float:
        """About how many rows it has."""
        return self._size(relation.oid)[0]

    def slices(self, leaf: Leaf, relation: Relation, most: int) -> list[Query]:
        """A leaf over the whole relation; a partitioned one has at least a slice per partition."""
        parts = self._size(relation.oid)[1]
        clock = self.reading.clock
        if not parts:
            return [after_query(leaf, relation.name.sql(), clock)]
        step = _step(sum(pages for _, pages in parts), most)
        return [after_query(leaf, name, clock, where=w) for name, pages in parts for w in _conditions(pages, step)]

    def buffer_slices(self, leaf: Leaf, buffer: str, select: Callable[[str], Query], most: int) -> list[Query]:
        """What `select` reads of a table of a leaf's changes, given a condition on its rows `r`.

        Not in slices if an expression could fail on a row that came and went, for its two halves may be in different
        ones; nor if the clock moves rows, which are found in the relation itself.
        """
        if leaf.may_raise or leaf.clock_filters:
            return [select("")]
        row = self.reading.conn.execute(
            "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int8", (buffer,)
        ).fetchone()
        assert row is not None
        pages = int(row[0])
        return [select(where) for where in _conditions(pages, _step(pages, most))]

    def _size(self, oid: int) -> tuple[float, list[tuple[str, int]]]:
        """Estimated rows, and the physical relations with their pages, if they can be told apart."""
        if oid not in self._sizes:
            found = self.reading.conn.execute(_PARTS, {"oid": oid, "role": self.reading.role}).fetchall()
            only = "ONLY " if len(found) > 1 else ""
            # A table that was never analysed has no row count: assume rows of a hundred bytes.
            rows = sum(tuples if tuples > 0 else pages * 80.0 for _, pages, tuples, _ in found)
            # Whoever may read some columns, or the parent alone, can say neither ctid nor the partition's name.
            parts = [(only + name, int(pages)) for name, pages, _, _ in found] if all(f[3] for f in found) else []
            self._sizes[oid] = rows, parts
        return self._sizes[oid]


def sliced_frame(reading: Reading, queries: Sequence[Query], schema: pa.Schema) -> Frame:
    """SELECTs of the owner's, each run by a task: together the rows of a DataFrame."""
    return slices_frame(reading.spark, _slices(reading, queries, schema, {}))


def printable_slices(
    reading: Reading, queries: Sequence[Query], schema: pa.Schema, settings: Mapping[str, str]
) -> Slices:
    """SELECTs for tasks under more settings, whose rows are only printed: numbers stay text."""
    as_text = [field.with_type(pa.string()) if pa.types.is_decimal(field.type) else field for field in schema]
    return _slices(reading, queries, pa.schema(as_text), settings)


def _slices(reading: Reading, queries: Sequence[Query], schema: pa.Schema, settings: Mapping[str, str]) -> Slices:
    owner = reading.as_owner.under({**reading.as_owner.settings, **settings})
    types = binary_types(schema)
    texts = [owner.typed_select_sql(query.text, query.params or {"none": None}, types) for query in queries]
    return Slices(reading.dsn, reading.exported, owner.settings, schema, texts)


def _step(pages: int, most: int) -> int:
    """How many pages a slice has when there are to be `most` of them."""
    return max(_LEAST_PAGES, -(-pages // most))


def _conditions(pages: int, step: int) -> list[str]:
    """Slices of a table with so many pages, as conditions on its rows `r`; the last one has no end."""
    found = []
    for start in range(0, max(pages, 1), step):
        end = start + step
        upper = "" if end >= pages else f" AND r.ctid < '({end},0)'::tid"
        found.append(f"r.ctid >= '({start},0)'::tid{upper}")
    return found
