"""Leaves that PostgreSQL reads: the SELECTs of a read and of a delta, and what a read by keys costs."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.plan.stage import Leaf
from runnel.ports.rows import Query, Restriction
from runnel.ports.source import Reading
from runnel.sources.statements import Buffer, after_query, delta_query

_SCANNED_AT_LEAST = 1000.0
"""Rows that a read without an index is taken to touch, even of a table that is thought to be empty."""


def select_rows(
    reading: Reading, leaf: Leaf, relation: str, restriction: Restriction | None, keys: Sequence[int] | None
) -> Query:
    """The leaf as it is now, from a relation given as SQL."""
    return after_query(leaf, relation, reading.clock, restriction=restriction, keys=keys)


def select_delta(reading: Reading, leaf: Leaf, buffer: Buffer, relation: str) -> Query:
    """What changed in the leaf: the buffer's rows, and those of the relation that the clock moved in or out."""
    return delta_query(leaf, buffer, relation, reading.clock)


def key_cost(reading: Reading, leaf: Leaf, relation: str, sql: str, keys: int, *, indexed: bool) -> float:
    """About how many rows PostgreSQL touches to find those under so many keys of an expression."""
    known = reading.statistics.of(reading.conn, relation)
    found = keys * known.fanout(leaf.plain_column(sql) or "")
    return found if indexed else found + max(known.rows, _SCANNED_AT_LEAST)
