"""The stream tables as the engine knows them: catalog rows joined with their compiled plans."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import psycopg

from runnel.catalog import store
from runnel.catalog.rows import StreamTable
from runnel.engine.plans import Plans
from runnel.errors import RunnelError, SchemaDriftError, UserError
from runnel.model.frontier import Frontier
from runnel.model.names import Name
from runnel.ports.source import Used
from runnel.refresh.maintained import Maintained, Position
from runnel.schedule.dag import Graph, descendants, find_circle, units
from runnel.sources.registry import Kinds
from runnel.sql.compile import Compiled, compile_query
from runnel.sql.deep import is_deep, with_room
from runnel.sql.describe import relation_columns
from runnel.sql.parse import parse_query
from runnel.sql.scales import Table, column_scales, result_scales

_PLAIN = re.compile("[a-z_][a-z0-9_]*")
"""A part of a name that PostgreSQL reads as it is written."""

VIEW = "VIEW"
"""In pgt_dependencies: a view that the query names; the relations below it are listed too."""


@dataclass
class Registry:
    """All stream tables, compiled once per version of their definition."""

    rows: dict[int, StreamTable] = field(default_factory=dict)
    graph: dict[int, frozenset[int]] = field(default_factory=dict)
    kinds: Kinds = ()
    """Of sources, as long as the engine is connected."""
    relations_read: dict[int, dict[int, str]] = field(default_factory=dict)
    """Per stream table the relations that it reads, other stream tables aside: oid, and the word for its kind."""
    tracked: frozenset[int] = frozenset()
    """Tables that are captured now; a dropped source is not, though its readers still name it."""
    broken: dict[int, str] = field(default_factory=dict)
    """Stream tables whose rows in the catalog make no sense, and why."""
    plans: Plans = field(default_factory=Plans)
    """Shared by the registries of an engine."""
    must_log: Callable[[int], bool] = lambda _: False
    """Whether somebody is about to read a stream table, though the catalog does not say so yet."""
    changes: int = 0
    """How many changes of definitions this registry has seen, by the count of its engine."""
    _readers: set[int] = field(default_factory=set)
    _read_at: int = 0
    """The clock of the plans when the catalog was read."""
    _units: list[list[int]] | None = None

    def reload(self, conn: psycopg.Connection) -> None:
        """Read the catalog anew."""
        self._read_at, self._units = self.plans.clock, None
        tables, self.tracked, dependencies = store.load_catalog(conn)
        self.rows = {row.pgt_id: row for row in tables}
        self.graph = {i: frozenset() for i in self.rows}
        self.relations_read = {i: {} for i in self.rows}
        self._readers = set()
        for d in dependencies:
            if d.pgt_id not in self.rows:
                continue  # left behind by a DELETE in a session whose foreign keys were off
            if d.source_pgt_id is not None:
                if d.source_pgt_id in self.rows:
                    self.graph[d.pgt_id] |= {d.source_pgt_id}
                self._readers.add(d.source_pgt_id)
            elif d.source_type != VIEW:
                self.relations_read[d.pgt_id][d.source_relid] = d.source_type
        self._cut_circles()

    def reload_only(self, conn: psycopg.Connection, tables: Collection[int]) -> bool:
        """Read the rows of some stream tables and of what they read; False if one of them is gone or new."""
        read_at = self.plans.clock
        wanted = {*tables, *(up for t in tables for up in self.graph.get(t, ()))}
        rows = store.load_stream_tables(conn, sorted(wanted))
        if {row.pgt_id for row in rows} != wanted or not wanted <= self.rows.keys():
            return False
        self._read_at = read_at
        self.rows.update({row.pgt_id: row for row in rows})
        self._readers = (self._readers - set(tables)) | store.tables_read(conn, sorted(tables))
        return True

    def _cut_circles(self) -> None:
        """Without an order nothing could be refreshed; the tables that stand in its way are not, the others are."""
        self.broken = {}
        while circle := find_circle(self.graph):
            for node in circle:
                self.broken[node] = "by its rows in pgtrickle.pgt_dependencies it depends on itself"
                self.graph[node] -= set(circle)

    def units(self) -> list[list[int]]:
        """What must be refreshed together, upstream first."""
        if self._units is None:
            self._units = units(self.graph, {i: tuple(read) for i, read in self.relations_read.items()})
        return self._units

    def find(self, name: Name) -> StreamTable | None:
        """A stream table by name."""
        return next((r for r in self.rows.values() if (r.pgt_schema, r.pgt_name) == (name.schema, name.name)), None)

    def find_only(self, text: str) -> StreamTable | None:
        """A stream table by a plain name that can mean no other one, whatever the search path."""
        schema, _, name = text.rpartition(".")
        if not all(_PLAIN.fullmatch(part) for part in (schema or name, name)):
            return None
        found = [r for r in self.rows.values() if r.pgt_name == name and schema in ("", r.pgt_schema)]
        return found[0] if len(found) == 1 else None

    def readers(self, *relations: int) -> list[int]:
        """Stream tables that read one of these relations."""
        return [i for i, read in self.relations_read.items() if not read.keys().isdisjoint(relations)]

    def kinds_read(self, tables: Iterable[int]) -> list[str]:
        """The kinds of sources that these stream tables read, by their words in the catalog."""
        return sorted({kind for pgt_id in tables for kind in self.relations_read[pgt_id].values()})

    def relations(self, tables: Collection[int]) -> set[int]:
        """The relations that these stream tables read."""
        return {oid for pgt_id in tables for oid in self.relations_read[pgt_id]}

    def maintained(self, conn: psycopg.Connection, pgt_id: int) -> Maintained:
        """A stream table ready to be refreshed."""
        row = self.rows[pgt_id]
        key = (row.definition_version, f"{row.refresh_mode} {row.forgotten}")
        logged = pgt_id in self._readers or self.must_log(pgt_id)
        known = self.plans.find(pgt_id, key)
        if known is None or known.name != Name(row.pgt_schema, row.pgt_name):
            known = self._compile(conn, row, logged)
            self.plans.keep(pgt_id, key, known, self._read_at)
        return known if known.logged == logged else replace(known, logged=logged)

    def refuse_broken(self, pgt_id: int) -> None:
        """Only a new definition helps a stream table whose rows in the catalog make no sense."""
        if pgt_id in self.broken:
            row = self.rows[pgt_id]
            raise UserError(
                f"stream table {row.pgt_schema}.{row.pgt_name}: {self.broken[pgt_id]}",
                hint="Define it again: pgtrickle.alter_stream_table(name, query => ...), or drop it.",
            )

    def _compile(self, conn: psycopg.Connection, row: StreamTable, logged: bool) -> Maintained:
        owner = role_name(conn, row.owner)
        plan, reason, polled = None, row.mode_reason, False
        scales: dict[str, int] = {}
        sources: tuple[Used, ...] = ()
        over_lent = None
        try:
            compiled = compile_query(conn, row.defining_query, settings=row.settings, role=owner, kinds=self.kinds)
            plan, reason = compiled.plan, compiled.reason or row.mode_reason
            columns, polled = compiled.description.columns, compiled.polled
            scales = known_scales(compiled, self._upstream_scales(conn, compiled))
            sources = compiled.used
            over_lent = compiled.over_lent
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
            sources=sources,
            polled=polled,
            scales=scales,
            logged=logged,
            over_lent=over_lent,
            forgotten=row.forgotten,
        )

    def _upstream_scales(self, conn: psycopg.Connection, compiled: Compiled) -> dict[int, Mapping[str, int]]:
        """What is known of the digits of the stream tables that a query reads."""
        read = {r.origin.upstream for r in compiled.relations if r.origin.upstream in self.rows}
        found: dict[int, Mapping[str, int]] = {}
        for upstream in read:
            try:
                found[upstream] = self.maintained(conn, upstream).scales
            except RunnelError:
                found[upstream] = {}  # it cannot be read as it was: its own refresh will say so
        return found

    def forget_all(self) -> None:
        """Compile everything anew: the server may be another one than before."""
        self.plans.forget_all()

    def forget(self, pgt_id: int) -> None:
        """Compile a stream table, and what reads it, anew at its next use: readers know its digits."""
        now = self.plans.forget((pgt_id, *descendants(self.graph, pgt_id)))
        if now == self._read_at + 1:
            # Nobody else has forgotten anything since the catalog was read: what it says still counts.
            self._read_at = now


def role_name(conn: psycopg.Connection, oid: int) -> str:
    """A role's name; the engine's own when the role is gone."""
    row = conn.execute(
        "SELECT coalesce((SELECT rolname FROM pg_roles WHERE oid = %s), current_user)", (oid,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def known_scales(compiled: Compiled, upstream: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    """Digits after the point of a query's numeric columns, as far as its text and the tables it reads tell.

    `upstream`: what is known of stream tables, whose own columns are numerics without bounds.
    """
    deep = any(is_deep(text) for text in (compiled.description.canonical, *compiled.view_texts.values()))
    return {} if deep else with_room(lambda: _scales(compiled, upstream))


def _scales(compiled: Compiled, upstream: Mapping[int, Mapping[str, int]]) -> dict[str, int]:
    tree = parse_query(compiled.description.canonical)
    if tree is None:
        return {}
    tables = {
        _table(r.name): column_scales(r.columns, upstream.get(r.origin.upstream or 0))
        for r in (*compiled.relations, *compiled.views)
    }
    parsed = {_table(name): parse_query(text) for name, text in compiled.view_texts.items()}
    views = {name: query for name, query in parsed.items() if query is not None}
    # A view that cannot be read says nothing of its columns.
    opaque = parsed.keys() - views.keys()
    return result_scales(
        tree, compiled.description.columns, {k: v for k, v in tables.items() if k not in opaque}, views
    )


def _table(name: Name) -> Table:
    return name.schema, name.name


def position(row: StreamTable) -> Position:
    """Where a stream table stands."""
    reinit = (row.drift or "its state must be rebuilt") if row.needs_reinit else None
    try:
        frontier = Frontier.from_json(row.frontier)
    except (ValueError, TypeError, AttributeError):
        # Nothing says which changes it has seen; its query and its sources still say what it should be.
        frontier, reinit = Frontier(), "its frontier in the catalog cannot be read, so it must be rebuilt"
    return Position(frontier, row.version, row.is_populated, reinit)


def ready(graph: Graph, rows: dict[int, StreamTable], node: int) -> bool:
    """Whether a stream table may be refreshed: itself in order, and everything it reads filled."""
    row = rows[node]
    in_order = row.status in ("ACTIVE", "INITIALIZING") and row.drift is None
    return in_order and all(rows[u].is_populated for u in graph[node] if u in rows)
