"""The sink that writes each refresh's changes to an outbox: a delta is there exactly when it is in the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from runnel.errors import EngineBug, UserError
from runnel.model.names import Name
from runnel.plan.stage import Origin
from runnel.ports.sink import Later, Published, Refreshed, Result, Wish
from runnel.sinks.columns import keep_types, published
from runnel.sinks.known import Known
from runnel.sinks.options import given
from runnel.sinks.outbox import catalog
from runnel.sinks.outbox.catalog import Attached
from runnel.sinks.outbox.messages import write_all, write_changes
from runnel.sinks.reading import reader
from runnel.sinks.shared import Shared, postponed
from runnel.sinks.transaction import taking_part

Connection = psycopg.Connection[Any]

ATTACH, DETACH, DETACH_IF = "attach", "detach", "detach if attached"
DEFAULT_HOURS, DEFAULT_ROWS = 24, 1000


@dataclass
class OutboxPublication:
    """What one transaction writes to outboxes."""

    conn: Connection
    known: Known[Attached]
    _changes: dict[int, Attached | None] = field(default_factory=dict)

    def put(self, pgt_id: int, wish: Wish) -> None:
        """Attach an outbox, or let go of it: then it and its messages stay."""
        if isinstance(wish.after, Attached):
            if wish.before is None:
                catalog.attach(self.conn, pgt_id, wish.after)
            self._changes[pgt_id] = wish.after
        elif wish.before is not None:
            catalog.detach(self.conn, pgt_id)
            self._changes[pgt_id] = None

    def drop(self, pgt_id: int, why: str) -> None:
        """The outbox goes with its stream table."""
        if self._attached(pgt_id) is not None or pgt_id in catalog.abandoned(self.conn):
            catalog.delete(self.conn, pgt_id)
            self._changes[pgt_id] = None

    def prepare(self, result: Result) -> None:
        """Nothing: a delta is all that is needed."""

    def wants(self, pgt_id: int, *, changed: bool, definition_version: int) -> bool:
        """Changes are written, and all rows when there is nothing yet."""
        attached = self._attached(pgt_id)
        return attached is not None and (changed or attached.columns is None)

    def publish(self, result: Result, refreshed: Refreshed) -> Published | None:
        """Write what a refresh did, or all there is if nothing was written yet, or with other columns."""
        if not self.wants(result.id, changed=refreshed.changed, definition_version=result.definition_version):
            return None
        began = time.perf_counter()
        attached = self._attached(result.id)
        assert attached is not None
        columns = keep_types(published(result.columns, result.scales), attached.columns)
        shape = [c.as_json for c in columns]
        owner = reader(self.conn, result.owner)
        same = shape == attached.columns
        write = write_changes if same else write_all
        write(owner, attached, result, refreshed, columns)
        if not same or attached.relid != result.relid:
            catalog.save_shape(self.conn, result, shape)
            self._changes[result.id] = replace(attached, columns=shape, relid=result.relid)
        catalog.notify(self.conn, attached.name)
        spent = round((time.perf_counter() - began) * 1000, 3)
        return Published(inserted=refreshed.inserted, deleted=refreshed.deleted, timings={"outbox": spent})

    def later(self) -> Sequence[Later]:
        """Nothing has to wait."""
        return ()

    def publish_later(self, later: Later) -> Published:
        """Never asked for."""
        raise EngineBug("an outbox does not wait")

    def before_commit(self) -> None:
        """Nothing: the messages are in the same transaction."""

    def committed(self) -> None:
        """What this transaction changed holds for the next."""
        self.known.change(self._changes)

    def undo(self, error: BaseException) -> None:
        """Whether it was committed may be unknown: look again."""
        if self._changes:
            self.known.doubt(self._changes)

    def _attached(self, pgt_id: int) -> Attached | None:
        if pgt_id in self._changes:
            return self._changes[pgt_id]
        return self.known.all(lambda: catalog.load(self.conn)).get(pgt_id)


@dataclass
class OutboxSink:
    """Writes what refreshes change to outboxes, from where the relay and others read it."""

    shared: Shared
    name = "outbox"
    options = ("outbox", "outbox_retention_hours", "outbox_rows")

    def publication(self, conn: Connection) -> OutboxPublication:
        """What a transaction writes to outboxes."""
        return OutboxPublication(conn, self.shared.outboxes)

    def wish(self, conn: Connection, args: Mapping[str, Any], pgt_id: int | None, name: Name, role: str) -> Wish:
        """The outbox that a request attaches or lets go."""
        before = self._attached(conn).get(pgt_id) if pgt_id is not None else None
        asked = given(args, self.options).get("outbox")
        if asked is None:
            return Wish(before, before)
        if asked not in (ATTACH, DETACH, DETACH_IF):
            raise UserError(f"invalid outbox {asked!r}", hint=f"Use '{ATTACH}' or '{DETACH}'.", sqlstate="22023")
        if asked != ATTACH:
            if before is None and asked == DETACH:
                raise UserError(f"outbox not attached for stream table: {name}", sqlstate="55000")
            return Wish(before, None)
        if before is not None:
            raise UserError(
                f"outbox already attached for stream table: {name}",
                hint="Change it with pgtrickle.detach_outbox() and pgtrickle.attach_outbox().",
                sqlstate="42710",
            )
        hours = _number(args, "outbox_retention_hours", DEFAULT_HOURS, least=0)
        rows = _number(args, "outbox_rows", DEFAULT_ROWS, least=1)
        return Wish(before, Attached(outbox_name(name), hours, rows))

    def describe(self, conn: Connection, pgt_id: int) -> str | None:
        """The outbox's name."""
        attached = self._attached(conn).get(pgt_id)
        return None if attached is None else f"outbox {attached.name}"

    def upstream(self, conn: Connection, origin: Origin) -> int | None:
        """None: an outbox is no relation."""
        return None

    def tidy(self, conn: Connection, results: Callable[[int], Result]) -> None:
        """Delete the outboxes of stream tables that were dropped by plain DROP TABLE."""
        for pgt_id in catalog.abandoned(conn):
            with postponed(conn), taking_part(self, conn) as publication, conn.transaction():
                publication.drop(pgt_id, "its stream table was dropped")
                publication.before_commit()

    def close(self) -> None:
        """Nothing is held."""

    def _attached(self, conn: Connection) -> dict[int, Attached]:
        return self.shared.outboxes.all(lambda: catalog.load(conn))


def outbox_name(name: Name) -> str:
    """The outbox of a stream table has its name."""
    return name.name if name.schema == "public" else str(name)


def _number(args: Mapping[str, Any], key: str, default: int, *, least: int) -> int:
    value = args.get(key)
    number = default if value is None else int(value)
    if number < least:
        raise UserError(f"{key.removeprefix('outbox_')} must be at least {least}", sqlstate="22023")
    return number
