"""The sink that publishes to DuckLake: what definitions ask of it, and what it does when there is time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.lake.attached import DEFAULT_LAKE, default_lake_name, load_lake
from runnel.model.names import Name
from runnel.plan.stage import Origin
from runnel.ports.sink import Result, Wish
from runnel.sinks.ducklake import catalog as sinks
from runnel.sinks.ducklake.options import OPTIONS, describe, no_sink, sink_of
from runnel.sinks.ducklake.publication import NAME, LakePublication, Memory
from runnel.sinks.options import given
from runnel.sinks.shared import Shared, postponed
from runnel.sinks.transaction import taking_part
from runnel.sources.ducklake.ref import LakeRef

Connection = psycopg.Connection[Any]


@dataclass
class DuckLakeSink:
    """Publishes stream tables to attached lakes, in one of three modes: merge, append, replace."""

    shared: Shared
    memory: Memory = field(default_factory=Memory)
    name = NAME
    options = OPTIONS

    def publication(self, conn: Connection) -> LakePublication:
        """What a transaction publishes to lakes."""
        return LakePublication(conn, self.shared, self.memory)

    def wish(self, conn: Connection, args: Mapping[str, Any], pgt_id: int | None, name: Name, role: str) -> Wish:
        """The sink a request asks for; its lake must be attached."""
        row = sinks.load_sink(conn, pgt_id) or no_sink(pgt_id or 0, name)
        before = row if row.publishes else None
        if not given(args, OPTIONS):
            return Wish(before, before)
        after = sink_of(args, row, default_lake_name(conn) or DEFAULT_LAKE)
        if not after.publishes:
            return Wish(before, None)
        assert after.lake is not None
        load_lake(conn, after.lake)
        return Wish(before, after)

    def describe(self, conn: Connection, pgt_id: int) -> str | None:
        """Lake, view, mode."""
        sink = sinks.load_sink(conn, pgt_id)
        return describe(sink) if sink is not None and sink.publishes else None

    def upstream(self, conn: Connection, origin: Origin) -> int | None:
        """The stream table whose rows this table of a lake holds."""
        ref = origin.ref
        return sinks.published_as(conn, ref.lake, ref.table_id) if isinstance(ref, LakeRef) else None

    def tidy(self, conn: Connection, results: Callable[[int], Result]) -> None:
        """Remove what stream tables dropped by plain DROP TABLE have published; finish row maps; look for leftovers."""
        abandoned = sinks.abandoned_sinks(conn)
        for pgt_id, sink in abandoned.items():
            with postponed(conn), taking_part(self, conn) as publication, conn.transaction():
                publication.drop(pgt_id, f"stream table {sink.view_name} was dropped")
                publication.before_commit()
        for sink in sinks.load_sinks(conn).values():
            if sink.map_start is not None and sink.pgt_id not in abandoned:
                with postponed(conn), taking_part(self, conn) as publication, conn.transaction():
                    publication.prepare(results(sink.pgt_id))
                    publication.before_commit()
        self.shared.leftovers.wake()

    def close(self) -> None:
        """Nothing: connections are shared."""
