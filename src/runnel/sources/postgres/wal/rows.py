"""From pgoutput's messages to rows of change buffers, as binary COPY wants them.

A table may feed several buffers: its own, and those of tables that it is a partition or a child of. Columns are found
by name. What cannot be told in rows (a TRUNCATE, a missing old row, a column that is gone or has another type) becomes
a marker of the same transaction: whoever reads it computes anew.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from runnel.sources.postgres.wal.messages import (
    DELETE,
    INSERT,
    NEW,
    NULL,
    OLD,
    UPDATE,
    Field,
    Relation,
    read_fields,
)

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_prefix = struct.Struct(">hiQih").pack
"""Number of fields; the transaction and its length; the weight and its length."""
_NEW_AT = 6
"""Where the row begins in an INSERT, and the first row in an UPDATE or DELETE: behind kind, table and word."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A change buffer: the captured table, the tables whose rows it takes, its columns with number, name and type."""

    source: int
    relations: frozenset[int]
    columns: tuple[tuple[int, str, int], ...]

    @property
    def statement(self) -> str:
        """The COPY that fills it."""
        names = "".join(f", c{number}" for number, _, _ in self.columns)
        return f"COPY pgtrickle_changes.changes_{self.source} (pgt_xid, pgt_w{names}) FROM STDIN (FORMAT binary)"


@dataclass
class Load:
    """What goes to one buffer next."""

    buffer: Buffer
    parts: list[bytes] = field(default_factory=list)
    rows: int = 0
    marked: set[int] = field(default_factory=set)
    """Transactions that have a marker already."""
    xids: set[int] = field(default_factory=set)
    """Transactions of what waits here."""
    _xid: int | None = None
    _fronts: dict[int, bytes] = field(default_factory=dict)
    """How rows of one transaction begin, by weight."""

    def add(self, xid: int, weight: int, values: tuple[Field, ...]) -> bool:
        """A row; a marker instead, and False, if one of its values is not told."""
        if None in values:
            self.mark(xid)
            return False
        if xid != self._xid:
            self._xid = xid
            self.xids.add(xid)
            width = len(values) + 2
            self._fronts = {each: _prefix(width, 8, xid, 2, each) for each in (-1, 1)}
        self.parts.append(self._fronts[weight] + b"".join(values))  # type: ignore[arg-type]
        self.rows += 1
        return True

    def mark(self, xid: int) -> None:
        """Say "compute anew", once per transaction."""
        self.xids.add(xid)
        if xid not in self.marked:
            self.marked.add(xid)
            self.parts.append(marker(xid, len(self.buffer.columns)))
            self.rows += 1

    def take(self) -> tuple[bytes, set[int]]:
        """All of it, to be copied, and the transactions that it is of."""
        taken, xids = b"".join((HEADER, *self.parts, TRAILER)), self.xids
        self.parts, self.xids, self._xid = [], set(), None
        return taken, xids


def marker(xid: int, columns: int) -> bytes:
    """A row of weight 0.

    >>> marker(7, 1).hex()
    '0003000000080000000000000007000000020000ffffffff'
    """
    return _prefix(columns + 2, 8, xid, 2, 0) + NULL * columns


Chosen = Callable[[Sequence[Field]], tuple[Field, ...]]


@dataclass(frozen=True, slots=True)
class Route:
    """From a table's rows to a buffer's; `chosen` is None if they do not fit, and each change is a marker."""

    load: Load
    chosen: Chosen | None

    def put(self, xid: int, old: Sequence[Field] | None, new: Sequence[Field] | None) -> None:
        """One change: an old row that goes, a new one that comes."""
        load = self.load
        if self.chosen is None:
            load.mark(xid)
            return
        gone = None if old is None else self.chosen(old)
        come = None if new is None else self.chosen(new)
        if gone is not None and come is not None:
            if None in come:
                # TOASTed and not changed: the old row has it.
                come = tuple(o if n is None else n for o, n in zip(gone, come, strict=True))
            if gone == come and None not in gone:
                return
        if gone is not None and not load.add(xid, -1, gone):
            return
        if come is not None:
            load.add(xid, 1, come)


def choose(columns: Sequence[int]) -> Chosen:
    """The values at some places of a row.

    >>> choose([])([b"x"]), choose([1])([b"x", b"y"]), choose([1, 0])([b"x", b"y"])
    ((), (b'y',), (b'y', b'x'))
    """
    if not columns:
        return lambda _: ()
    if len(columns) == 1:
        only = columns[0]
        return lambda fields: (fields[only],)
    return itemgetter(*columns)


class Router:
    """Knows the buffers as of one moment, and the shapes of tables that the stream has told."""

    def __init__(self, buffers: Iterable[Buffer], shapes: Mapping[int, Relation]) -> None:
        self.loads = {buffer.source: Load(buffer) for buffer in buffers}
        self._shapes = shapes
        self._routes: dict[int, list[Route]] = {}

    def forget(self, table: int) -> None:
        """Its shape is another one."""
        self._routes.pop(table, None)

    def routes(self, table: int) -> list[Route]:
        """Where the changes of a table go; nowhere if nobody captures it any more."""
        found = self._routes.get(table)
        if found is None:
            shape = self._shapes.get(table)
            loads = [load for load in self.loads.values() if table in load.buffer.relations]
            found = self._routes[table] = [Route(load, _fit(load.buffer, shape)) for load in loads]
        return found

    def change(self, kind: int, message: bytes, xid: int) -> None:
        """An INSERT, UPDATE or DELETE."""
        routes = self.routes(int.from_bytes(message[1:5]))
        if not routes:
            return
        old: list[Field] | None = None
        new: list[Field] | None = None
        if kind == INSERT:
            new, _ = read_fields(message, _NEW_AT)
        elif message[5] == OLD:
            old, at = read_fields(message, _NEW_AT)
            if kind == UPDATE:
                if message[at] != NEW:
                    raise ValueError("an UPDATE without a new row")
                new, _ = read_fields(message, at + 1)
        else:
            # The table's REPLICA IDENTITY was not FULL when this was written: the old row is not known.
            for route in routes:
                route.load.mark(xid)
            return
        for route in routes:
            route.put(xid, old, new)

    def truncate(self, tables: Iterable[int], xid: int) -> None:
        """Tables were emptied."""
        for table in tables:
            for route in self.routes(table):
                route.load.mark(xid)


def _fit(buffer: Buffer, shape: Relation | None) -> Chosen | None:
    """How to pick a buffer's columns out of a table's row; None if one is missing or of another type."""
    if shape is None:
        return None
    places = {name: (place, oid) for place, (name, oid) in enumerate(shape.columns)}
    chosen = []
    for _, name, oid in buffer.columns:
        place, found = places.get(name, (-1, 0))
        if found != oid:
            return None
        chosen.append(place)
    return choose(chosen)


CHANGES = (INSERT, UPDATE, DELETE)
