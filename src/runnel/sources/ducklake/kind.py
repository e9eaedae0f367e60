"""DuckLake tables as a kind of source: recognized by their stand-ins, read at one snapshot per refresh transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runnel.plan.stage import Origin
from runnel.ports.source import Connection, Kind, Reading, Source, Used
from runnel.sources.ducklake.catalogs import LakeCatalogs
from runnel.sources.ducklake.lent import Lent
from runnel.sources.ducklake.names import resolve_names
from runnel.sources.ducklake.reads import LakeIo, LakeReads
from runnel.sources.ducklake.ref import LakeRef, ref_of
from runnel.sources.ducklake.source import LakeTableSource
from runnel.sources.ducklake.standins import Standins

NAMES = "SELECT lake, table_id, lake_schema, lake_table FROM pgtrickle.pgt_lake_tables"
RELATIONS = "SELECT relid::int8, lake FROM pgtrickle.pgt_lake_tables"


class LakeTables(Kind):
    """Tables of attached lakes."""

    name = "LAKE_TABLE"
    hint = "lake"
    found_by = "(SELECT to_jsonb(k) FROM pgtrickle.pgt_lake_tables k WHERE k.relid = c.oid)"

    def __init__(self) -> None:
        """Nothing is read before it is asked for."""
        self._catalogs = LakeCatalogs()
        self._standins = Standins(self._catalogs)
        self._lent = Lent()
        self._reads: LakeReads | None = None

    def origin(self, found: Any) -> Origin:
        """The table that a foreign table stands for."""
        return Origin(self.name, ref_of(found), noun="lake table", selectable=False, by_statistics=True)

    def resolve_names(self, conn: Connection, query: str) -> str:
        """Three-part names, as DuckDB has them, become those of stand-ins."""
        return resolve_names(query, lambda: [LakeRef(*row) for row in conn.execute(NAMES).fetchall()])

    def open(self, reading: Reading, used: Sequence[Used]) -> Mapping[int, Source]:
        """The lake tables of a stream table; all tables of a transaction see a lake at the same snapshot."""
        if self._reads is None or self._reads.conn is not reading.conn:
            self._reads = LakeReads(reading.conn, self._catalogs)
        io, lent = LakeIo(), self._lent.counted(reading.spark.meter.driver)
        found: dict[int, Source] = {}
        for each in used:
            ref = each.relation.origin.ref
            assert isinstance(ref, LakeRef)
            found[each.relation.oid] = LakeTableSource(reading, self._reads, lent, io, each, ref)
        return found

    # -- between refreshes -----------------------------------------------------------------------------------

    def follow(self, conn: Connection) -> None:
        """Bring stand-ins in step with their lakes, and notice new snapshots."""
        self._standins.follow(conn)

    def moved(self, conn: Connection) -> set[int]:
        """The stand-ins of lakes in which new snapshots were seen."""
        return _standins_of(conn, self._standins.moved())

    def polled(self, conn: Connection) -> set[int]:
        """The stand-ins of lakes that cannot tell of new snapshots."""
        return _standins_of(conn, self._standins.polled)

    def finish(self) -> None:
        """Let the snapshots of catalogs go."""
        self._reads = None
        self._catalogs.finish()

    def tidy(self, conn: Connection, living: Collection[int], relations: Collection[int]) -> None:
        """Drop the temporary tables of others."""
        self._lent.keep_only(conn, living, relations)

    def forget(self) -> None:
        """Temporary tables are gone."""
        self._lent.forget()

    def close(self) -> None:
        """Let go of the connections to catalogs elsewhere."""
        self._catalogs.close()


def _standins_of(conn: Connection, lakes: Collection[str]) -> set[int]:
    if not lakes:
        return set()
    return {int(oid) for oid, lake in conn.execute(RELATIONS).fetchall() if lake in lakes}
