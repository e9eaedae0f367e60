"""The stream tables as the engine knows them: catalog rows joined with their compiled plans."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import psycopg

from runnel.catalog import sinks, store
from runnel.catalog.rows import StreamTable
from runnel.errors import RunnelError, SchemaDriftError
from runnel.model.frontier import Frontier
from runnel.model.names import Name
from runnel.refresh.maintained import LakeSource, Maintained, Position, lake_sources
from runnel.schedule.dag import Graph, units
from runnel.sql.compile import Compiled, compile_query
from runnel.sql.deep import is_deep, with_room
from runnel.sql.describe import relation_columns
from runnel.sql.parse import parse_query
from runnel.sql.scales import result_scales


@dataclass
class Registry:
    """All stream tables, compiled once per version of their definition."""

    rows: dict[int, StreamTable] = field(default_factory=dict)
    graph: dict[int, frozenset[int]] = field(default_factory=dict)
    sources: dict[int, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    sinks: dict[int, sinks.Sink] = field(default_factory=dict)
    """Where stream tables are published."""
    lake_sources: dict[int, dict[int, str]] = field(default_factory=dict)
    """Per stream table the stand-ins that it reads, with the lake that each belongs to."""
    tracked: frozenset[int] = frozenset()
    """Tables that are captured now; a dropped source is not, though its readers still name it."""
    _compiled: dict[tuple[int, int, str], Maintained] = field(default_factory=dict)
    _readers: set[int] = field(default_factory=set)

    def reload(self, conn: psycopg.Connection) -> None:
        """Read the catalog anew."""
        self.rows = {row.pgt_id: row for row in store.load_stream_tables(conn)}
        self.graph = {i: frozenset() for i in self.rows}
        self.sources = {i: {} for i in self.rows}
        self.sinks = sinks.load_sinks(conn)
        self.lake_sources = {i: {} for i in self.rows}
        lakes = store.lakes_of_standins(conn)
        self._readers = set()
        self.tracked = frozenset(store.change_tracking(conn))
        for d in store.load_dependencies(conn):
            if d.source_pgt_id is not None:
                self.graph[d.pgt_id] |= {d.source_pgt_id}
                self._readers.add(d.source_pgt_id)
            elif d.source_type == "TABLE":
                self.sources[d.pgt_id][d.source_relid] = tuple(d.columns_used)
            elif d.source_type == "LAKE_TABLE":
                self.lake_sources[d.pgt_id][d.source_relid] = lakes.get(d.source_relid, "")

    def units(self) -> list[list[int]]:
        """What must be refreshed together, upstream first."""
        return units(self.graph, {i: (*s, *self.lake_sources[i]) for i, s in self.sources.items()})

    def find(self, name: Name) -> StreamTable | None:
        """A stream table by name."""
        return next((r for r in self.rows.values() if (r.pgt_schema, r.pgt_name) == (name.schema, name.name)), None)

    def readers(self, source: int) -> list[int]:
        """Stream tables that read a captured table."""
        return [i for i, sources in self.sources.items() if source in sources]

    def lake_readers(self, lakes: Collection[str]) -> list[int]:
        """Stream tables that read a table of one of these lakes."""
        return [i for i, sources in self.lake_sources.items() if not set(sources.values()).isdisjoint(lakes)]

    def maintained(self, conn: psycopg.Connection, pgt_id: int) -> Maintained:
        """A stream table ready to be refreshed."""
        row = self.rows[pgt_id]
        key = (pgt_id, row.definition_version, f"{row.refresh_mode} {row.ducklake_expired}")
        logged = pgt_id in self._readers
        known = self._compiled.get(key)
        if known is None or known.logged != logged or known.name != Name(row.pgt_schema, row.pgt_name):
            known = self._compile(conn, row, logged)
            self._compiled[key] = known
        return known

    def _compile(self, conn: psycopg.Connection, row: StreamTable, logged: bool) -> Maintained:
        owner = role_name(conn, row.owner)
        plan, reason, polled = None, row.mode_reason, False
        scales: dict[str, int] = {}
        lakes: tuple[LakeSource, ...] = ()
        staged = None
        try:
            compiled = compile_query(conn, row.defining_query, settings=row.settings, role=owner)
            plan, reason = compiled.plan, compiled.reason or row.mode_reason
            columns, polled = compiled.description.columns, compiled.polled
            scales = known_scales(compiled)
            lakes = lake_sources(compiled.relations, compiled.column_uses)
            staged = compiled.staged
        except RunnelError:
            # The query no longer compiles: its sources drifted. Refreshes will say so; everything else still works.
            if row.status != "ERROR":
                raise
            columns = relation_columns(conn, row.pgt_relid)
        mode = row.refresh_mode
        if plan is None and mode == "DIFFERENTIAL" and row.status != "ERROR":
            raise SchemaDriftError(
                f"stream table {row.pgt_schema}.{row.pgt_name}: {reason} cannot be maintained incrementally any more",
                hint="Change its query or its refresh_mode with pgtrickle.alter_stream_table.",
            )
        return Maintained(
            id=row.pgt_id,
            name=Name(row.pgt_schema, row.pgt_name),
            relid=row.pgt_relid,
            owner=owner,
            query=row.defining_query,
            columns=columns,
            settings=row.settings,
            mode="FULL" if mode == "FULL" else "DIFFERENTIAL" if mode == "DIFFERENTIAL" else "AUTO",
            plan=plan,
            reason=reason,
            sources=self.sources[row.pgt_id],
            upstream=self.graph[row.pgt_id],
            polled=polled,
            scales=scales,
            logged=logged,
            lakes=lakes,
            staged=staged,
            expired=row.ducklake_expired,
        )

    def forget_all(self) -> None:
        """Compile everything anew: the server may be another one than before."""
        self._compiled.clear()

    def forget(self, pgt_id: int) -> None:
        """Compile a stream table anew at its next use."""
        self._compiled = {k: v for k, v in self._compiled.items() if k[0] != pgt_id}


def role_name(conn: psycopg.Connection, oid: int) -> str:
    """A role's name; the engine's own when the role is gone."""
    row = conn.execute(
        "SELECT coalesce((SELECT rolname FROM pg_roles WHERE oid = %s), current_user)", (oid,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def known_scales(compiled: Compiled) -> dict[str, int]:
    """Digits after the point of a query's numeric columns, as far as its text tells."""
    text = compiled.description.canonical
    relations = (*compiled.relations, *compiled.views)
    tables = {(r.name.schema, r.name.name): r.columns for r in relations}

    def scales() -> dict[str, int]:
        tree = parse_query(text)
        return {} if tree is None else result_scales(tree, compiled.description.columns, tables)

    return {} if is_deep(text) else with_room(scales)


def position(row: StreamTable) -> Position:
    """Where a stream table stands."""
    reinit = "its state must be rebuilt" if row.needs_reinit else None
    return Position(Frontier.from_json(row.frontier), row.version, row.is_populated, reinit)


def ready(graph: Graph, rows: dict[int, StreamTable], node: int) -> bool:
    """Whether a stream table may be refreshed: itself in order, and everything it reads filled."""
    row = rows[node]
    return row.status in ("ACTIVE", "INITIALIZING") and all(rows[u].is_populated for u in graph[node] if u in rows)
