"""Captured tables during one refresh: which captured rows are new, and the SELECTs that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runnel.errors import SchemaDriftError
from runnel.model.frontier import POSTGRES, Version
from runnel.plan.stage import Leaf, Relation
from runnel.ports.rows import Query, Restriction, Rows
from runnel.ports.source import Pending, Reading, Source, Used
from runnel.sources.postgres.wal.waiting import Waiting
from runnel.sources.selects import key_cost, select_delta, select_rows
from runnel.sources.slices import WholeTables
from runnel.sources.statements import Buffer, table_buffer, textual_columns

MARKED = "a source was truncated, its partitions changed, or its changes cannot be told in rows"
SHOWN = "pg_visible_in_snapshot(pgt_xid, %(at)s::pg_snapshot)"
"""Of what comes from the WAL, some may be there too early."""


@dataclass
class Looked:
    """What was seen of captured tables in one transaction; all stream tables that it refreshes share it."""

    waiting: dict[tuple[int, Version], Pending] = field(default_factory=dict)
    """By table, and by the snapshot that a stream table has read it at."""
    numbers: dict[int, dict[str, int]] = field(default_factory=dict)
    """The attribute number of each captured column."""


@dataclass
class Captured:
    """The captured tables of a stream table: asked together, because each question is a round trip."""

    reading: Reading
    used: Sequence[Used]
    whole: WholeTables
    looked: Looked
    decoded: Waiting | None = None
    """For tables that are captured from the WAL."""
    _fits: bool = False

    def waiting(self, oid: int, since: Version) -> Pending:
        """What capture holds for a table since a snapshot; all tables of a stream table have been read at the same."""
        seen = self.looked.waiting
        if (oid, since) not in seen:
            missing = [u.relation.oid for u in self.used if (u.relation.oid, since) not in seen]
            if self.decoded is not None:
                self.decoded.arrive(self.reading, missing)
                for each in missing:
                    self.decoded.fill(self.reading, each, since)
            parts = [
                f"SELECT {each}, count(*) FILTER (WHERE pgt_w <> 0), coalesce(bool_or(pgt_w = 0), false) "
                f"FROM {self.buffer(each)} WHERE NOT pg_visible_in_snapshot(pgt_xid, %(f)s::pg_snapshot)"
                f"{f' AND {SHOWN}' if self.comes_late(each) else ''}"
                for each in missing
            ]
            params = {"f": since, "at": self.reading.snapshot}
            found = self.reading.conn.execute(" UNION ALL ".join(parts).encode(), params).fetchall()
            for each, rows, marked in found:
                seen[each, since] = Pending(rows, recompute=self._why_anew(each, since) if marked else None)
        if self.decoded is not None:
            self.decoded.admit(self.reading, oid)
        return seen[oid, since]

    def _why_anew(self, oid: int, since: Version) -> str:
        """Why a marker is there; the owner may want to hear of changes that were lost."""
        lost = self.decoded.lost(since) if self.decoded is not None and self.comes_late(oid) else None
        if lost is None:
            return MARKED
        if self.reading.forgotten == "error":
            raise SchemaDriftError(
                f"stream table {self.reading.name}: changes of its sources were lost: {lost}",
                hint=f"Rebuild it: SELECT pgtrickle.resume_stream_table('{self.reading.name}').",
            )
        return f"warning: changes were lost: {lost}; recomputed"

    def comes_late(self, oid: int) -> bool:
        """Whether changes of a table are written to its buffer after they were committed."""
        return self.decoded is not None and self.decoded.place(oid) is not None

    def buffer(self, oid: int) -> str:
        """Where the changes of a table are, in this transaction."""
        place = None if self.decoded is None else self.decoded.place(oid)
        return f"pgtrickle_changes.changes_{oid}" if place is None else place.buffer

    def numbers(self, oid: int) -> Mapping[str, int]:
        """The attribute number of each captured column; one that capture has lost is drift."""
        known = self.looked.numbers
        missing = [u.relation.oid for u in self.used if u.relation.oid not in known]
        if missing:
            rows = self.reading.conn.execute(
                "SELECT source_relid::int8, columns FROM pgtrickle.pgt_change_tracking WHERE source_relid = ANY(%s)",
                (missing,),
            )
            known |= {o: {c["name"]: int(c["attnum"]) for c in columns} for o, columns in rows}
        if not self._fits:
            self._refuse_lost()
            self._fits = True
        return known[oid]

    def _refuse_lost(self) -> None:
        for used in self.used:
            missing = [n for n in used.columns if n not in self.looked.numbers.get(used.relation.oid, {})]
            if missing:
                raise SchemaDriftError(
                    f"stream table {self.reading.name}: column {missing[0]!r} of one of its sources is gone",
                    hint="Change the query with pgtrickle.alter_stream_table, or drop the stream table.",
                )


@dataclass
class CapturedTable(Source):
    """A `Source` over a captured table: its version is the snapshot of the refresh."""

    captured: Captured
    relation: Relation
    name: str = POSTGRES
    _rows: int = 0

    @property
    def reading(self) -> Reading:
        """The refresh."""
        return self.captured.reading

    def head(self) -> Version:
        """The snapshot of the refresh transaction."""
        return self.reading.snapshot

    def pending(self, since: Version | None) -> Pending:
        """Captured rows that the snapshot of then does not show."""
        if since is None:
            return Pending()
        found = self.captured.waiting(self.relation.oid, since)
        self._rows = found.rows
        return found

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:
        """The captured rows, and those that the clock moved."""
        if since is None or not (self._rows or leaf.clock_filters):
            return None

        def select(where: str = "") -> Query:
            buffer = self._buffer(leaf, str(since), where)
            return select_delta(self.reading, leaf, buffer, self.relation.name.sql())

        def slices(most: int) -> Sequence[Query]:
            return self.captured.whole.buffer_slices(leaf, buffer, select, most)

        # Other sessions see no temporary table of this one.
        buffer = self.captured.buffer(self.relation.oid)
        return Rows(self._rows, select=select, slices=None if buffer.startswith("pg_temp.") else slices)

    def _buffer(self, leaf: Leaf, since: str, where: str) -> Buffer:
        numbers = self.captured.numbers(self.relation.oid)
        textual = textual_columns(self.relation.columns)
        used = {name: numbers[name] for name in leaf.uses}
        oid = self.relation.oid
        at = self.reading.snapshot if self.captured.comes_late(oid) else None
        return table_buffer(
            self.captured.buffer(oid), used, since, at, netted=leaf.may_raise, textual=textual, where=where
        )

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """The table's rows; a whole one may be read by tasks."""
        self.captured.numbers(self.relation.oid)
        relation = self.relation.name.sql()
        narrow = Rows(0, select=lambda: select_rows(self.reading, leaf, relation, restriction, keys))
        if restriction is not None or keys is not None:
            return narrow
        whole = self.captured.whole
        estimate = whole.estimate(self.relation)
        return Rows(estimate, narrow.select, slices=lambda most: whole.slices(leaf, self.relation, most))

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """By PostgreSQL's statistics."""
        indexed = leaf.plain_column(sql) in self.relation.indexed
        return key_cost(self.reading, leaf, self.relation.name.sql(), sql, keys, indexed=indexed)

    def lend(self) -> None:
        """PostgreSQL reads it under its own name."""
        self.captured.numbers(self.relation.oid)

    @property
    def changes(self) -> int:
        """The captured rows that waited."""
        return self._rows
