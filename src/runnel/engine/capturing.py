"""How an owner wants changes to be captured: by triggers, from the WAL, or whatever works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from runnel.errors import UserError
from runnel.ports.source import Used

ARGUMENT = "cdc_mode"
AS_THE_ENGINE = "default"
"""Whatever the engine's own setting says, now and later."""
MODES = ("trigger", "wal", "auto", AS_THE_ENGINE)

_OBSTACLE = """
SELECT o.obstacle, o.way_out FROM pgtrickle._wal_obstacle(%(oid)s::oid, (
    SELECT coalesce(jsonb_agg(jsonb_build_object('attnum', a.attnum)), '[]') FROM pg_attribute a
    WHERE a.attrelid = %(oid)s::oid AND a.attname = ANY(%(columns)s))) o
WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = %(oid)s::oid AND c.relkind IN ('r', 'p')
              AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = c.oid))
"""
_SOURCES = """
SELECT d.source_name, t.capture, t.capture_reason, w.wish
FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_change_tracking t USING (source_relid)
JOIN pgtrickle._capture_wishes() w USING (source_relid)
WHERE d.pgt_id = %s AND (w.wish <> 'trigger' OR t.capture <> 'trigger') ORDER BY d.source_name
"""
_WORDS = {
    "wal": "from the WAL",
    "trigger": "by triggers",
    "leaving": "by triggers again, while older changes come from the WAL",
}


def wished_mode(args: Mapping[str, Any]) -> str | None:
    """The mode that a call names, if any."""
    given = args.get(ARGUMENT)
    return None if given is None else str(given).lower()


def refuse_obstacles(conn: psycopg.Connection, used: Sequence[Used], mode: str | None) -> None:
    """Whoever insists on the WAL is told what stands in the way, before anything is done."""
    if mode != "wal":
        return
    for each in used:
        row = conn.execute(_OBSTACLE, {"oid": each.relation.oid, "columns": list(each.columns)}).fetchone()
        if row is not None:
            raise UserError(
                f"changes of {each.relation.name} cannot be captured from the WAL: {row[0]}",
                hint=f"{row[1]} cdc_mode => 'auto' takes triggers meanwhile.",
                sqlstate="55000",
            )


def set_mode(conn: psycopg.Connection, pgt_id: int, mode: str) -> None:
    """Record what the owner wants; the decoder's thread follows."""
    said = None if mode == AS_THE_ENGINE else mode
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET cdc_mode = %s WHERE pgt_id = %s", (said, pgt_id))


def describe_capture(conn: psycopg.Connection, pgt_id: int) -> list[str]:
    """For people: how the sources of a stream table are captured, where it is not simply by triggers."""
    return [
        f"Captured {_WORDS[capture]}: {name}" + (f" (cdc_mode {wish}: {reason})" if reason else "")
        for name, capture, reason, wish in conn.execute(_SOURCES, (pgt_id,))
    ]
