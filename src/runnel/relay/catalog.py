"""Typed access to the relay's tables in schema `tide`. Whoever calls decides on the transaction."""

from __future__ import annotations

import json
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from runnel.relay.config import Pipeline
from runnel.relay.message import Message

Connection = psycopg.Connection[Any]


# Rights are looked at each time: they may have been taken back since the pipeline was made.
PIPELINES = """
SELECT p.name, p.outbox_name, p.sink_type, p.config, p.batch_size, r.rolname,
       tide._may_read(r.rolname, p.outbox_name) AND tide._may_send(r.rolname, p.sink_type), false
FROM tide.relay_outbox_config p JOIN pg_roles r ON r.oid = p.owner WHERE p.enabled
UNION ALL
SELECT p.name, p.inbox_name, p.source_type, p.config, p.batch_size, r.rolname,
       tide._may_send(r.rolname, p.source_type), true
FROM tide.relay_inbox_config p JOIN pg_roles r ON r.oid = p.owner WHERE p.enabled
ORDER BY 1
"""
# A row, and no advisory lock: every role can hold any of those.
CLAIM = """
INSERT INTO tide.relay_claims AS c (pipeline, pid, backend_start)
SELECT %s, a.pid, a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
ON CONFLICT (pipeline) DO UPDATE SET pid = excluded.pid, backend_start = excluded.backend_start
WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = c.pid AND a.backend_start = c.backend_start)
   OR (c.pid, c.backend_start) = (excluded.pid, excluded.backend_start)
RETURNING true
"""
BEGIN_OFFSETS = """
INSERT INTO tide.relay_consumer_offsets (pipeline_id, outbox_name)
SELECT name, %(outbox)s FROM tide.relay_outbox_config WHERE name = %(name)s ON CONFLICT DO NOTHING
"""
OFFSET = """
SELECT o.last_change_id, o.attempts, o.state, p.config = %(config)s AND p.sink_type = %(kind)s AND p.enabled
    AND p.outbox_name = o.outbox_name AND p.batch_size = %(size)s
FROM tide.relay_consumer_offsets o JOIN tide.relay_outbox_config p ON p.name = o.pipeline_id
WHERE o.relay_group_id = 'default' AND o.pipeline_id = %(name)s AND o.outbox_name = %(outbox)s
"""
NUMBER = "SELECT tide._number(%s)"
NEXT = """
SELECT "offset", payload::text, headers::text, created_at FROM tide.tide_outbox_messages
WHERE outbox_name = %s AND "offset" > %s ORDER BY "offset" LIMIT %s
"""
DELIVERED = """
UPDATE tide.relay_consumer_offsets SET last_change_id = %(offset)s, delivered_count = delivered_count + %(count)s,
    attempts = 0, last_error = NULL, failed_at = NULL, state = coalesce(%(state)s, state), updated_at = now()
WHERE relay_group_id = 'default' AND pipeline_id = %(pipeline)s AND outbox_name = %(outbox)s
"""
FAILED = """
UPDATE tide.relay_consumer_offsets SET failed_count = failed_count + 1, attempts = attempts + 1, last_error = %s,
    failed_at = now(), updated_at = now()
WHERE relay_group_id = 'default' AND pipeline_id = %s AND outbox_name = %s RETURNING attempts
"""
BURY = """
INSERT INTO tide.relay_dead_letters (pipeline_id, outbox_name, "offset", payload, headers, created_at, error)
VALUES (%s, %s, %s, %s::jsonb, %s, %s, %s)
"""
REPLAYS = """
SELECT id, "offset", payload::text, headers::text, created_at FROM tide.relay_dead_letters
WHERE pipeline_id = %s AND replay ORDER BY id LIMIT %s
"""
UNBURY = "DELETE FROM tide.relay_dead_letters WHERE id = %s"
REBURY = "UPDATE tide.relay_dead_letters SET replay = false, error = %s, failed_at = now() WHERE id = %s"
OUTBOXES = "SELECT outbox_name FROM tide.tide_outbox_config"
SWEEP = "SELECT tide._sweep(%s, %s)"
RECEIVED = """
UPDATE tide.relay_inbox_config SET received_count = received_count + %s, attempts = 0, last_error = NULL WHERE name = %s
"""
NOT_RECEIVED = "UPDATE tide.relay_inbox_config SET attempts = attempts + 1, last_error = %s WHERE name = %s"
INBOX_OWNER = """
SELECT r.rolname, i.inbox_schema, i.inbox_name || '_inbox' FROM tide.tide_inbox_config i
JOIN pg_namespace n ON n.nspname = i.inbox_schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = i.inbox_name || '_inbox' JOIN pg_roles r ON r.oid = c.relowner
WHERE i.inbox_name = %s AND pg_has_role(i.owner, c.relowner, 'USAGE')
"""
"""Whoever names a table of somebody else an inbox does not write to it."""


def pipelines(conn: Connection) -> tuple[list[Pipeline], list[str]]:
    """The pipelines to work on, and the names of those whose owner may no longer do what they do."""
    found, forbidden = [], []
    for name, place, kind, config, size, owner, allowed, inbox in conn.execute(PIPELINES):
        if allowed:
            found.append(Pipeline(name, place, kind, config, size, owner, inbox))
        else:
            forbidden.append(str(name))
    return found, forbidden


def take(conn: Connection, pipeline: Pipeline) -> bool:
    """Claim a pipeline for this session; other relays leave it alone until the session ends."""
    name = f"{'inbox' if pipeline.inbox else 'outbox'} {pipeline.name}"
    return conn.execute(CLAIM, (name,)).fetchone() is not None


def standing(conn: Connection, pipeline: Pipeline) -> tuple[int, int, Any] | None:
    """How far a pipeline has come, how often it has failed since, and what its sink remembers.

    None: it was told otherwise meanwhile, or is gone.
    """
    said = {"name": pipeline.name, "outbox": pipeline.place, "kind": pipeline.kind, "size": pipeline.batch_size}
    asked = {**said, "config": Jsonb(dict(pipeline.config))}
    row = conn.execute(OFFSET, asked).fetchone()
    if row is None:
        conn.execute(BEGIN_OFFSETS, said)
        row = conn.execute(OFFSET, asked).fetchone()
    return (int(row[0]), int(row[1]), row[2]) if row is not None and row[3] else None


def next_messages(conn: Connection, pipeline: Pipeline, after: int, limit: int) -> list[Message]:
    """What follows an offset; what has been committed since is numbered first."""
    conn.execute(NUMBER, (pipeline.place,))
    return [
        Message(pipeline.place, offset, payload, json.loads(headers), created)
        for offset, payload, headers, created in conn.execute(NEXT, (pipeline.place, after, limit))
    ]


def delivered(conn: Connection, pipeline: Pipeline, offset: int, count: int, state: Any = None) -> None:
    """The sink has everything up to this offset."""
    values = {"offset": offset, "count": count, "pipeline": pipeline.name, "outbox": pipeline.place}
    conn.execute(DELIVERED, {**values, "state": None if state is None else Jsonb(state)})


def failed(conn: Connection, pipeline: Pipeline, error: str) -> int:
    """A delivery has failed; how many have since the last success."""
    row = conn.execute(FAILED, (error, pipeline.name, pipeline.place)).fetchone()
    return int(row[0]) if row else 1


def bury(conn: Connection, pipeline: Pipeline, message: Message, error: str) -> None:
    """Put a message aside that the sink will never take."""
    where = (pipeline.name, message.outbox, message.offset)
    conn.execute(BURY, (*where, message.payload, Jsonb(dict(message.headers)), message.created_at, error))


def replays(conn: Connection, pipeline: Pipeline, limit: int) -> list[tuple[int, Message]]:
    """Dead letters that somebody wants sent again."""
    return [
        (id_, Message(pipeline.place, offset, payload, json.loads(headers), created))
        for id_, offset, payload, headers, created in conn.execute(REPLAYS, (pipeline.name, limit))
    ]


def unbury(conn: Connection, letter: int) -> None:
    conn.execute(UNBURY, (letter,))


def rebury(conn: Connection, letter: int, error: str) -> None:
    conn.execute(REBURY, (error, letter))


def sweep(conn: Connection, batch: int = 10_000) -> None:
    """Delete messages that everybody has and that are old enough."""
    names = [str(row[0]) for row in conn.execute(OUTBOXES)]
    for name in names:
        conn.execute(SWEEP, (name, batch))


def received(conn: Connection, pipeline: str, count: int) -> None:
    conn.execute(RECEIVED, (count, pipeline))


def not_received(conn: Connection, pipeline: str, error: str) -> None:
    conn.execute(NOT_RECEIVED, (error, pipeline))


def inbox_table(conn: Connection, inbox: str) -> tuple[str, str, str] | None:
    """Owner, schema and name of the table of an inbox."""
    row = conn.execute(INBOX_OWNER, (inbox,)).fetchone()
    return None if row is None else (str(row[0]), str(row[1]), str(row[2]))
