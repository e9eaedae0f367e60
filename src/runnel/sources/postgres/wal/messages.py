"""The messages of pgoutput, PostgreSQL's own output plugin, as far as they matter here; values are in binary form.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html has the whole format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
BEGIN, COMMIT, RELATION, TRUNCATE = ord("B"), ord("C"), ord("R"), ord("T")
OLD, NEW = ord("O"), ord("N")
"""Which row follows: a whole old one (REPLICA IDENTITY FULL), or a new one."""

Field = bytes | None
"""A value as a binary COPY wants it, with its length in front; None: not told (TOASTed and unchanged, or as text)."""
NULL = b"\xff\xff\xff\xff"

_BINARY, _NULL = ord("b"), ord("n")
_TEXT = ord("t")
_length = struct.Struct(">i").unpack_from
_count = struct.Struct(">h").unpack_from
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_TRUNCATED = struct.Struct(">IB")


@dataclass(frozen=True, slots=True)
class Relation:
    """How the rows of a table look from here on: names and types of its columns, in order."""

    oid: int
    columns: tuple[tuple[str, int], ...]


def read_relation(message: bytes) -> Relation:
    """A table's shape.

    >>> named, typed = b"R\\0\\0\\0\\7public\\0t\\0f", b"\\0\\0\\0\\x17\\xff\\xff\\xff\\xff"
    >>> read_relation(named + b"\\0\\1\\1id\\0" + typed)
    Relation(oid=7, columns=(('id', 23),))
    """
    at = message.index(b"\0", message.index(b"\0", 5) + 1) + 2
    columns = []
    count, at = _count(message, at)[0], at + 2
    for _ in range(count):
        end = message.index(b"\0", at + 1)
        columns.append((message[at + 1 : end].decode(), int.from_bytes(message[end + 1 : end + 5])))
        at = end + 9
    return Relation(int.from_bytes(message[1:5]), tuple(columns))


def read_begin(message: bytes) -> int:
    """The transaction's number, of 32 bits."""
    return int(_BEGIN.unpack_from(message, 1)[2])


def read_commit(message: bytes) -> int:
    """Where the transaction ends in the WAL."""
    return int(_COMMIT.unpack_from(message, 1)[2])


def read_truncate(message: bytes) -> list[int]:
    """The tables that were emptied."""
    count, _ = _TRUNCATED.unpack_from(message, 1)
    return [int.from_bytes(message[at : at + 4]) for at in range(6, 6 + 4 * count, 4)]


def read_fields(message: bytes, at: int) -> tuple[list[Field], int]:
    """The values of a row that begins at a place, and the place behind it.

    >>> read_fields(b"\\0\\3" b"n" b"b\\0\\0\\0\\2ab" b"u", 0)
    ([b'\\xff\\xff\\xff\\xff', b'\\x00\\x00\\x00\\x02ab', None], 11)
    """
    fields: list[Field] = []
    count = _count(message, at)[0]
    at += 2
    for _ in range(count):
        kind = message[at]
        if kind == _BINARY:
            end = at + 5 + _length(message, at + 1)[0]
            fields.append(message[at + 1 : end])
            at = end
        elif kind == _NULL:
            fields.append(NULL)
            at += 1
        else:
            fields.append(None)
            at += 5 + _length(message, at + 1)[0] if kind == _TEXT else 1
    return fields, at


def full_xid(xid: int, latest: int) -> int:
    """A transaction's number of 32 bits with its epoch, given a number that is not older.

    >>> full_xid(5, 7), full_xid(4_294_967_295, (3 << 32) + 2) == (3 << 32) - 1
    (5, True)
    """
    found = (latest & ~0xFFFFFFFF) | xid
    return found if found <= latest else found - (1 << 32)


def lsn_text(lsn: int) -> str:
    """A place in the WAL as PostgreSQL prints it.

    >>> lsn_text(0x16B374D48), read_lsn("1/6B374D48") == 0x16B374D48
    ('1/6B374D48', True)
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_lsn(text: str) -> int:
    """A place in the WAL from PostgreSQL's print."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
