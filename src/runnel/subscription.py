"""What a stream table's refreshes change, as it is committed: each change once, in order, from a given version on.

Changes come from the table's outbox, which its refreshes write in their own transactions. A subscriber keeps its own
place: who goes on from the version of the last delta that it has dealt with misses nothing and sees nothing twice.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql

from runnel.errors import RunnelError, UserError

Connection = psycopg.Connection[Any]
Row = Mapping[str, Any]

CHANNEL = "tide_outbox_new"
LONGEST_SLEEP = 5.0
"""Somebody else may have given the newest messages their numbers, without a word."""
DEAF_SLEEP = 0.5
"""Behind a connection pooler nothing is heard."""
AT_ONCE = 100

FIND = "SELECT outbox_name, last_offset FROM tide.tide_outbox_config WHERE relid = %s::oid"
NUMBER = "SELECT tide._number(%s)"
LAST = "SELECT last_offset FROM tide.tide_outbox_config WHERE outbox_name = %s"
OLDEST = 'SELECT min("offset") FROM tide.tide_outbox_messages WHERE outbox_name = %s'
# As text: numbers keep all their digits.
READ = """
SELECT "offset", payload::text FROM tide.tide_outbox_messages
WHERE outbox_name = %(outbox)s AND "offset" > %(after)s ORDER BY "offset" LIMIT %(limit)s
"""


COLUMNS = """
SELECT attname::text, atttypid = ANY ('{float4, float8}'::regtype[]) FROM pg_attribute
WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a refresh changed, or a part of it if that is large. An update is a row deleted and one inserted."""

    version: int
    """Go on from here."""
    stream_table: str
    refresh_id: int | None
    at: dt.datetime | None
    inserted: Sequence[Row]
    deleted: Sequence[Row]
    reset: bool
    """Everything begins anew: forget all rows; those that follow are all there are."""


def subscription(
    conn: Connection,
    oid: int,
    name: str,
    after: int | None,
    seconds: float | None,
    *,
    attach: Callable[[], None] | None,
    hears: bool,
) -> Iterator[Delta]:
    """Deltas after a version, as they come; without one, those that come from now on. Ends after so many seconds
    without any, if that is said. `attach` makes the outbox if there is none. A session that others get next `hears`
    nothing and must not listen: it looks."""
    outbox = _outbox(conn, oid, name, attach)
    if hears:
        conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
    longest = LONGEST_SLEEP if hears else DEAF_SLEEP
    _number(conn, outbox)
    place = _last(conn, outbox) if after is None else after
    _check_kept(conn, outbox, place)
    floats: dict[str, bool] = dict(conn.execute(COLUMNS, (oid,)).fetchall())
    heard = time.monotonic()
    while True:
        _number(conn, outbox)
        found = conn.execute(READ, {"outbox": outbox, "after": place, "limit": AT_ONCE}).fetchall()
        if found and found[0][0] != place + 1:
            _check_kept(conn, outbox, place)
        for version, text in found:
            place = version
            payload = json.loads(text, parse_float=Decimal)
            if payload.get("reset"):
                # It may have been given another query meanwhile.
                floats = dict(conn.execute(COLUMNS, (oid,)).fetchall())
            yield _delta(version, name, payload, floats)
        if found:
            heard = time.monotonic()
            continue
        left = longest if seconds is None else heard + seconds - time.monotonic()
        if left <= 0:
            return
        for _ in conn.notifies(timeout=min(left, longest), stop_after=1):
            pass


def _delta(version: int, name: str, payload: Row, floats: Mapping[str, bool]) -> Delta:
    at = payload.get("at")
    return Delta(
        version=version,
        stream_table=str(payload.get("stream_table") or name),
        refresh_id=payload.get("refresh_id"),
        at=dt.datetime.fromisoformat(at) if isinstance(at, str) else None,
        inserted=tuple(_row(row, floats) for row in payload.get("inserted") or ()),
        deleted=tuple(_row(row, floats) for row in payload.get("deleted") or ()),
        reset=bool(payload.get("reset")),
    )


def _number(conn: Connection, outbox: str) -> None:
    """Give new messages their places; in a transaction, which says itself that it writes."""
    with conn.transaction():
        conn.execute(NUMBER, (outbox,))


def _row(row: Row, floats: Mapping[str, bool]) -> Row:
    """A row with its columns in the table's order; floating-point numbers are such, all others are exact.

    >>> _row({"n": 1, "x": Decimal("0.5"), "price": Decimal("5.00")}, {"price": False, "x": True, "n": False})
    {'price': Decimal('5.00'), 'x': 0.5, 'n': 1}
    """
    names = [*(name for name in floats if name in row), *(name for name in row if name not in floats)]
    return {
        name: float(row[name]) if floats.get(name) and isinstance(row[name], int | Decimal) else row[name]
        for name in names
    }


def _outbox(conn: Connection, oid: int, name: str, attach: Callable[[], None] | None) -> str:
    found = conn.execute(FIND, (oid,)).fetchone()
    if found is None:
        if attach is None:
            raise UserError(
                f"{name} has no outbox, from which its changes come.",
                hint=f"SELECT pgtrickle.attach_outbox('{name}'), as its owner.",
            )
        try:
            attach()
        except (psycopg.Error, RunnelError):
            # Another one who begins to listen may have been faster.
            if conn.closed or conn.execute(FIND, (oid,)).fetchone() is None:
                raise
        found = conn.execute(FIND, (oid,)).fetchone()
        assert found is not None
    return str(found[0])


def _last(conn: Connection, outbox: str) -> int:
    row = conn.execute(LAST, (outbox,)).fetchone()
    return 0 if row is None else int(row[0])


def _check_kept(conn: Connection, outbox: str, place: int) -> None:
    """Refuse to go on where changes are missing."""
    row = conn.execute(OLDEST, (outbox,)).fetchone()
    oldest = None if row is None else row[0]
    first = oldest if oldest is not None else _last(conn, outbox) + 1
    if first > place + 1:
        raise UserError(
            f"The changes after version {place} are not kept any more; the oldest is {first}.",
            hint="Read the table, and go on from now; pgtrickle.attach_outbox has retention_hours.",
        )
