"""Reading the leaves of a stage inside the refresh transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from runnel.apply.tables import TEXTUAL
from runnel.catalog.owner import AsOwner
from runnel.model.frontier import Frontier
from runnel.model.names import quote
from runnel.plan.stage import Constant, Leaf, Relation, Stage, StageRef
from runnel.refresh.changes import Pending
from runnel.refresh.compute import LeafReader
from runnel.refresh.lakes import LakeAccess
from runnel.refresh.maintained import Maintained
from runnel.sources.arrow import leaf_schema, pg_types, read_arrow
from runnel.sources.restrict import is_indexed
from runnel.sources.statements import (
    Buffer,
    Clock,
    Query,
    Restriction,
    after_query,
    delta_query,
    log_buffer,
    stage_buffer,
    table_buffer,
)
from runnel.sources.statistics import Statistics
from runnel.spark.session import SMALL_ROWS, Sessions
from runnel.spark.task import slice_reader

# A slice of a table that one task reads: 64 MiB of pages.
_SLICE_PAGES = 8192


@dataclass
class LeafAccess:
    """One stream table's view of its sources during one refresh."""

    owner: AsOwner
    """Who reads: expressions over the leaves are the owner's."""
    dsn: str
    sessions: Sessions
    table: Maintained
    clock: Clock
    attributes: Mapping[int, Mapping[str, int]]
    """Per captured table: column name -> attribute number, as in its buffer."""
    versions: Mapping[int, int]
    pending: Pending
    statistics: Statistics
    lakes: LakeAccess
    moved: set[int] = field(default_factory=set)
    """Stages of this refresh whose rows have changed."""
    fresh: frozenset[int] = frozenset()
    """Stream tables written in this very transaction: tasks cannot see them yet."""
    _snapshot: str | None = None
    _sizes: dict[int, tuple[float, list[tuple[str, int]]]] = field(default_factory=dict)

    def reader(self) -> LeafReader:
        """The functions that compute_stage reads with."""
        return LeafReader(after=self.after, keys=self.keys, scan=self.scan, cost=self.cost)

    def relation_sql(self, leaf: Leaf) -> str:
        """The relation a leaf reads now."""
        if isinstance(leaf.source, StageRef):
            return self.table.tables(self.table.stages[leaf.source.index]).output
        if isinstance(leaf.source, Constant):
            return f"({leaf.source.sql})"
        return leaf.source.name.sql()

    def after(self, leaf: Leaf, restriction: Restriction | None) -> pa.Table | None:
        """A leaf now, on the driver; None when a scan by tasks is better."""
        if restriction is None and self._scannable(leaf) and self._estimate(leaf) > SMALL_ROWS:
            return None
        if restriction is not None and restriction.is_empty:
            return leaf_schema(leaf, weight=False).empty_table()
        relation = self._readable(leaf, restriction)
        if relation is None:
            return None
        query = after_query(leaf, relation, self.clock, restriction=restriction)
        return read_arrow(self.owner, query, leaf_schema(leaf, weight=False))

    def _readable(self, leaf: Leaf, restriction: Restriction | None, *, all_of_it: bool = False) -> str | None:
        """The relation with the rows of a leaf; rows of a lake are staged first, unless there are too many."""
        if isinstance(leaf.source, Relation) and leaf.source.lake is not None:
            return self.lakes.stage_rows(leaf, leaf.source, restriction, all_of_it=all_of_it)
        return self.relation_sql(leaf)

    def keys(self, leaf: Leaf, restriction: Restriction | None, columns: tuple[int, ...]) -> pa.Table:
        """The keys of a leaf with their multiplicities."""
        if restriction is not None and restriction.is_empty:
            return leaf_schema(leaf, columns, weight=True).empty_table()
        relation = self._readable(leaf, restriction, all_of_it=True)
        assert relation is not None
        query = after_query(leaf, relation, self.clock, restriction=restriction, keys=columns)
        return read_arrow(self.owner, query, leaf_schema(leaf, columns, weight=True))

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """About how many rows PostgreSQL touches to find those under so many keys."""
        if isinstance(leaf.source, Constant):
            return 1.0
        known = self.statistics.of(self.owner.conn, self.relation_sql(leaf))
        column = next((c.name for c in leaf.source.columns if sql == f"l{leaf.id}.{quote(c.name)}"), "")
        found = keys * known.fanout(column)
        return found if is_indexed(leaf, sql) else found + max(known.rows, 1000.0)

    def delta(self, leaf: Leaf, frontier: Frontier) -> pa.Table:
        """What changed in a leaf since the frontier."""
        if not self.may_have_changed(leaf):
            return leaf_schema(leaf, weight=True).empty_table()
        return read_arrow(self.owner, self.delta_query(leaf, frontier), leaf_schema(leaf, weight=True))

    def delta_query(self, leaf: Leaf, frontier: Frontier) -> Query:
        """The SELECT of what changed in a leaf since the frontier."""
        buffer = self._buffer(leaf, frontier)
        relation = self._readable(leaf, None, all_of_it=True) if leaf.clock_filters else self.relation_sql(leaf)
        assert relation is not None
        return delta_query(leaf, buffer, relation, self.clock)

    def may_have_changed(self, leaf: Leaf) -> bool:
        """False when it is known, without asking, that nothing is new."""
        source = leaf.source
        if isinstance(source, Constant):
            return False
        if leaf.clock_filters:
            return True
        if isinstance(source, StageRef):
            return source.index in self.moved
        if source.lake is not None:
            return self.lakes.has_changes(source)
        if source.pgt_id is not None:
            return source.pgt_id in self.pending.upstream
        return self.pending.rows.get(source.oid, 0) > 0

    def _buffer(self, leaf: Leaf, frontier: Frontier) -> Buffer:
        source = leaf.source
        assert not isinstance(source, Constant)
        if isinstance(source, StageRef):
            below: Stage = self.table.stages[source.index]
            return stage_buffer(self.table.tables(below).delta, [c.name for c in source.columns])
        textual = frozenset(c.name for c in source.columns if c.type.oid in TEXTUAL)
        if source.lake is not None:
            return self.lakes.buffer(leaf, source, textual)
        if source.pgt_id is not None:
            consumed = frontier.stream_tables.get(source.pgt_id, 0)
            names = [c.name for c in source.columns]
            return log_buffer(source.pgt_id, names, consumed, self.versions[source.pgt_id])
        numbers = self.attributes[source.oid]
        assert frontier.snapshot is not None
        used = {name: numbers[name] for name in leaf.uses}
        return table_buffer(source.oid, used, frontier.snapshot, netted=leaf.may_raise, textual=textual)

    # -- reads in tasks ------------------------------------------------------------------------------------

    def scan(self, leaf: Leaf) -> DataFrame:
        """The whole leaf, read by tasks in the refresh's snapshot."""
        schema = leaf_schema(leaf, weight=False)
        relation = leaf.source
        assert isinstance(relation, Relation)
        if relation.lake is not None:
            return self.lakes.frame(leaf, relation, self.clock, self.dsn, self.owner)
        queries: list[str] = []
        for name, pages in self._parts(leaf):
            for start in range(0, max(pages, 1), _SLICE_PAGES):
                end = start + _SLICE_PAGES
                upper = "" if end >= pages else f" AND r.ctid < '({end},0)'::tid"
                query = after_query(leaf, name, self.clock, where=f"r.ctid >= '({start},0)'::tid{upper}")
                text = self.owner.merged(query.text, query.params or {"none": None})
                queries.append(self.owner.select_sql(text, pg_types(schema)))
        read = slice_reader(self.dsn, self._export(), self.owner.settings, schema, queries)
        # A range of n partitions puts exactly one slice into each task.
        slices = self.sessions.large.range(0, len(queries), 1, len(queries))
        return slices.mapInArrow(read, from_arrow_schema(schema))

    def _export(self) -> str:
        if self._snapshot is None:
            row = self.owner.conn.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            self._snapshot = str(row[0])
        return self._snapshot

    def _scannable(self, leaf: Leaf) -> bool:
        source = leaf.source
        return isinstance(source, Relation) and source.pgt_id not in self.fresh and source.lake is None

    def _estimate(self, leaf: Leaf) -> float:
        assert isinstance(leaf.source, Relation)
        return self._size(leaf.source.oid)[0]

    def _parts(self, leaf: Leaf) -> list[tuple[str, int]]:
        assert isinstance(leaf.source, Relation)
        return self._size(leaf.source.oid)[1]

    def _size(self, oid: int) -> tuple[float, list[tuple[str, int]]]:
        """Estimated rows, and the physical relations with their pages."""
        if oid not in self._sizes:
            found = self.owner.conn.execute(
                "WITH RECURSIVE below(oid) AS (SELECT %s::oid UNION "
                "SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.oid) "
                "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), "
                "pg_relation_size(c.oid) / current_setting('block_size')::int8, c.reltuples::float8, c.relkind "
                "FROM below JOIN pg_class c ON c.oid = below.oid "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'",
                (oid,),
            ).fetchall()
            only = "ONLY " if len(found) > 1 else ""
            # A table that was never analysed has no row count: assume rows of a hundred bytes.
            rows = sum(tuples if tuples > 0 else pages * 80.0 for _, pages, tuples, _ in found)
            self._sizes[oid] = rows, [(only + name, int(pages)) for name, pages, _, _ in found]
        return self._sizes[oid]
