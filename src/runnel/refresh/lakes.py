"""The lake tables of one stream table during one refresh: what waits, and rows staged for PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from runnel.catalog.owner import AsOwner
from runnel.errors import SchemaDriftError
from runnel.lake.read.changes import ChangeSet, Expired
from runnel.lake.read.scan import Scan
from runnel.model.frontier import Frontier
from runnel.model.names import Name, quote
from runnel.model.types import Column
from runnel.plan.stage import Leaf, Relation
from runnel.refresh.maintained import LakeSource, Maintained
from runnel.sources.arrow import leaf_schema, pg_types
from runnel.sources.ducklake.copies import Staging
from runnel.sources.ducklake.reads import LakeIo, LakeReads, changed, changed_rows, scanned, scanned_rows
from runnel.sources.statements import WEIGHT, Buffer, Clock, Restriction, after_query
from runnel.spark.ducklake.tables import scan_frame
from runnel.spark.ducklake.through_postgres import TABLE, Staged, staging_reader
from runnel.spark.job import run
from runnel.spark.session import SMALL_ROWS, Sessions
from runnel.sparksql.translate import translate
from runnel.sql.lake_names import staged_table

TASK_ROWS, TASK_KEYS = 20_000_000, 1_000
"""A read by more keys, through more rows than this, is done by Spark's tasks; few keys leave most row groups closed."""

MANY_CHANGES = 500_000
LARGE_SHARE = 0.3
"""More changes than both, and AUTO lets Spark read the table instead of copying the changes to PostgreSQL."""


@dataclass
class LakeAccess:
    """One stream table's view of its lake tables."""

    conn: psycopg.Connection
    sessions: Sessions
    reads: LakeReads
    staging: Staging
    table: Maintained
    io: LakeIo = field(default_factory=LakeIo)
    changes: dict[int, ChangeSet] = field(default_factory=dict)
    """What waits, by stand-in; a table that is missing has no changes."""
    expired: str | None = None
    """Why changes cannot be read and the table must be recomputed, if so."""
    _staged: dict[int, int] = field(default_factory=dict)

    def look(self, frontier: Frontier) -> None:
        """Find out what changed since the frontier, from the catalogs alone."""
        for source in self.table.lakes:
            after = frontier.lakes.get(source.ref.key)
            self.reads.columns(source.ref, source.columns)
            if after is None:
                self.expired = f"no snapshot of lake table {source.relation.name} has been read before"
                continue
            if after > self.reads.head(source.ref):
                # Another lake has taken the place of the one that was read.
                self._expire(source, after, None)
                continue
            try:
                waiting = self.reads.changes(source.ref, source.columns, after)
            except Expired as error:
                self._expire(source, after, error)
                continue
            if not waiting.is_empty:
                self.changes[source.oid] = waiting

    def _expire(self, source: LakeSource, after: int, error: Expired | None) -> None:
        ref = source.ref
        text = (
            f"snapshot {after} of lake {ref.lake} has expired, so the changes of {ref.schema}.{ref.table} are not known"
        )
        if self.table.expired == "error":
            raise SchemaDriftError(
                f"stream table {self.table.name}: {text}",
                hint=f"Rebuild it: SELECT pgtrickle.alter_stream_table('{self.table.name}', "
                "ducklake_expired => 'fallback').",
            ) from error
        self.expired = f"warning: {text}; recomputed"

    @property
    def frontier(self) -> dict[str, int]:
        """The versions that this refresh reads."""
        return {s.ref.key: self.reads.head(s.ref) for s in self.table.lakes}

    @property
    def waiting(self) -> int:
        """At most how many changes wait."""
        return sum(changed_rows(c) for c in self.changes.values())

    def why_full(self) -> str | None:
        """Why to recompute although the changes are known: most of a large table is new, and Spark reads it faster."""
        if self.table.mode != "AUTO" or self.waiting < MANY_CHANGES:
            return None
        for source in self.table.lakes:
            waiting = self.changes.get(source.oid)
            if waiting is not None and changed_rows(waiting) >= MANY_CHANGES:
                rows = scanned_rows(self.reads.scan(source.ref, source.columns[:1]))
                if changed_rows(waiting) > rows * LARGE_SHARE:
                    return f"{changed_rows(waiting)} rows of {source.relation.name} are new or gone, most of the table"
        return None

    @property
    def changes_read(self) -> int:
        """How many changes were read."""
        return sum(self._staged.values())

    # -- rows for PostgreSQL ---------------------------------------------------------------------------------

    def stage_changes(self) -> None:
        """Copy all changes that wait to where PostgreSQL can read them."""
        for source in self.table.lakes:
            waiting = self.changes.get(source.oid)
            if waiting is not None:
                columns = _columns(source.relation, source.columns)
                self._staged[source.oid] = self.staging.fill(
                    self.conn, self._delta(source.oid), columns, changed(waiting, self.io), self.table.owner,
                    weighted=True,
                )  # fmt: skip

    def has_changes(self, relation: Relation) -> bool:
        return self._staged.get(relation.oid, 0) > 0

    def buffer(self, leaf: Leaf, relation: Relation, textual: frozenset[str]) -> Buffer:
        """The staged changes of a leaf's source, netted if an expression could fail on rows that came and went."""
        names = {name: quote(name).replace("%", "%%") for name in sorted(leaf.uses)}
        if not self.has_changes(relation):
            types = {c.name: c.type.sql for c in relation.columns}
            nothing = ", ".join([f"0::int8 AS {WEIGHT}", *(f"NULL::{types[n]} AS {c}" for n, c in names.items())])
            return Buffer(f"SELECT {nothing} WHERE false", {})
        table = self._delta(relation.oid).sql()
        if not (leaf.may_raise and names):
            return Buffer(f"SELECT {', '.join([WEIGHT, *names.values()])} FROM {table}", {})
        items = [f"(array_agg({c}))[1] AS {c}" if n in textual else c for n, c in names.items()]
        groups = [f"{c}::text" if n in textual else c for n, c in names.items()]
        text = f"SELECT sum({WEIGHT}) AS {WEIGHT}, {', '.join(items)} FROM {table} GROUP BY {', '.join(groups)}"
        return Buffer(f"{text} HAVING sum({WEIGHT}) <> 0", {})

    def stage_whole(self) -> None:
        """Copy all lake tables, so that PostgreSQL can evaluate the query itself."""
        for source in self.table.lakes:
            columns = source.relation.columns
            scan = self.reads.scan(source.ref, [c.name for c in columns])
            rows = scanned(scan, self.io)
            self.staging.fill(self.conn, staged_table(source.oid), columns, rows, self.table.owner)

    def stage_rows(
        self, leaf: Leaf, relation: Relation, restriction: Restriction | None, *, all_of_it: bool = False
    ) -> str | None:
        """Copy the rows that a leaf's read needs; the table that holds them.

        None when they are too many, unless all must be here: then Spark's tasks read the table.
        """
        assert relation.lake is not None
        names = _names(leaf, relation)
        keys = None if restriction is None else _keys(leaf, names, restriction)
        scan = self.reads.scan(relation.lake, names, keys)
        if not keys and not all_of_it and scanned_rows(scan) > SMALL_ROWS:
            return None
        rows = scanned(scan, self.io)
        if keys and scanned_rows(scan) > TASK_ROWS and min(map(len, keys.values())) > TASK_KEYS:
            # The keys are spread over many files: tasks look for them side by side, and few rows come back.
            self.io.count(scan)
            frame = scan_frame(self.sessions.large, scan, self.reads.history(relation.lake), native=False)
            rows = iter(run(frame).to_batches())
        target = Name("pg_temp", f"pgt_lake_rows_{self.table.id}_{relation.oid}_{leaf.id}")
        self.staging.fill(self.conn, target, _columns(relation, names), rows, self.table.owner)
        return target.sql()

    # -- whole reads by Spark --------------------------------------------------------------------------------

    def frame(self, leaf: Leaf, relation: Relation, clock: Clock, dsn: str, owner: AsOwner) -> DataFrame:
        """A whole leaf as Spark reads it; what Spark cannot compute exactly its tasks let PostgreSQL compute."""
        assert relation.lake is not None
        names = _names(leaf, relation)
        scan, history = self.reads.scan(relation.lake, names), self.reads.history(relation.lake)
        self.io.count(scan)
        precise = all(f.type != "timestamp_ns" for f in relation.lake.fields if f.name in names)
        translated = translate(leaf, relation.columns, self.table.settings) if precise else None
        if translated is None:
            return self._staged_frame(leaf, relation, scan, clock, dsn, owner)
        rows = scan_frame(self.sessions.large, scan, history).toDF(*names)
        for condition in translated.filters:
            rows = rows.where(condition)
        return rows.selectExpr(*(translated.columns or ("CAST(NULL AS BOOLEAN) AS nothing",)))

    def _staged_frame(
        self, leaf: Leaf, relation: Relation, scan: Scan, clock: Clock, dsn: str, owner: AsOwner
    ) -> DataFrame:
        query = after_query(leaf, Name("pg_temp", TABLE).sql(), clock)
        schema = leaf_schema(leaf, weight=False)
        columns = tuple(f"{quote(c.name)} {c.type.sql}" for c in _columns(relation, _names(leaf, relation)))
        text = owner.select_sql(owner.merged(query.text, query.params or {"none": None}), pg_types(schema))
        staged = Staged(dsn, columns, text, owner.settings, self.table.owner, schema)
        shares = [[spec] for spec in scan.files]
        numbers = self.sessions.large.range(0, len(shares) + 1, 1, len(shares) + 1)
        return numbers.mapInArrow(staging_reader(staged, shares, scan.inlined), from_arrow_schema(schema))

    def _delta(self, oid: int) -> Name:
        return Name("pg_temp", f"pgt_lake_delta_{self.table.id}_{oid}")


def _names(leaf: Leaf, relation: Relation) -> tuple[str, ...]:
    """The columns to read; a row without any still counts, so there is always one."""
    return leaf.uses or (relation.columns[0].name,)


def _columns(relation: Relation, names: Sequence[str]) -> list[Column]:
    by_name = {c.name: c for c in relation.columns}
    return [by_name[name] for name in names]


def _keys(leaf: Leaf, names: Sequence[str], restriction: Restriction) -> dict[str, list[object]]:
    """The keys that fall on plain columns: only those have statistics."""
    found: dict[str, list[object]] = {}
    plain = {f"l{leaf.id}.{quote(c.name)}": c for c in leaf.source.columns if c.name in names}
    for part in (restriction, *restriction.also):
        column = plain.get(part.sql)
        if column is not None and column.name not in found and _as_stored(column, part.array_type):
            found[column.name] = [*part.values, *([None] if part.include_null else [])]
    return found


def _as_stored(column: Column, compared_as: str) -> bool:
    """Whether keys mean to the lake what they mean to PostgreSQL: not where it converts the column to compare it."""
    family = column.type.family
    if family in ("date", "timestamp", "timestamptz"):
        return compared_as == family
    # A float's statistics are rounded in another way than its text.
    return family in ("int", "numeric", "text", "bool", "uuid") and compared_as != "float8"
