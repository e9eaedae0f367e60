"""Stream tables as a kind of source: recognized by the catalog, with a change log from their first reader on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runnel.apply.log import create_log
from runnel.plan.stage import Origin
from runnel.ports.source import Connection, Kind, Reading, Source, Used
from runnel.sources.slices import WholeTables
from runnel.sources.streamtable.source import UpstreamTable


class StreamTables(Kind):
    """Stream tables that others read."""

    name = "STREAM_TABLE"
    found_by = "(SELECT to_jsonb(s.pgt_id) FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = c.oid)"

    def origin(self, found: Any) -> Origin:
        """The stream table of that number."""
        return Origin(self.name, int(found), noun="stream table", upstream=int(found))

    def capture(self, conn: Connection, used: Sequence[Used], role: str) -> None:
        """Let each keep a log of its changes, which its reader may read."""
        for each in used:
            create_log(conn, _id(each), each.relation.columns, role)

    def open(self, reading: Reading, used: Sequence[Used]) -> Mapping[int, Source]:
        """The stream tables that a stream table reads."""
        whole = WholeTables(reading)
        return {u.relation.oid: UpstreamTable(reading, u.relation, _id(u), whole) for u in used}


def _id(used: Used) -> int:
    assert used.relation.origin.upstream is not None
    return used.relation.origin.upstream
