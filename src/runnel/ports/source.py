"""What a refresh asks of the relations that a stream table reads, whatever keeps them.

A *kind* of source (`Kind`) is one folder in `runnel.sources`: it recognizes its relations while a query is planned,
and opens them for a refresh. A *source* (`Source`) is one relation during one refresh of one stream table. Versions
belong to the source that gave them: everybody else only keeps them, in the frontier, and gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import psycopg

from runnel.catalog.owner import AsOwner
from runnel.catalog.statistics import Statistics
from runnel.model.frontier import Version
from runnel.model.names import Name
from runnel.plan.stage import Leaf, Origin, Relation
from runnel.ports.rows import Clock, Restriction, Rows

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Used:
    """A relation that a stream table reads, with the columns that it uses."""

    relation: Relation
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """What waits at a source since a version, by one cheap look."""

    rows: int = 0
    """At most how many changed rows."""
    moved: bool = False
    """Whether anything is new, even if no row is known to have changed."""
    recompute: str | None = None
    """Why the changes cannot be told in rows, or are not worth telling."""

    @property
    def any(self) -> bool:
        """Whether the stream table has to be refreshed."""
        return bool(self.rows or self.moved or self.recompute)


@dataclass
class Reading:
    """One refresh of one stream table, as its sources see it."""

    conn: Connection
    """In the refresh transaction."""
    dsn: str = field(repr=False)
    spark: Any
    """The Spark sessions (`runnel.spark.session.Sessions`)."""
    table_id: int
    name: Name
    role: str
    """The stream table's owner."""
    settings: Mapping[str, str]
    """Under which the query was created."""
    snapshot: str
    """Of the refresh transaction."""
    clock: Clock
    versions: Mapping[int, int]
    """Of all stream tables, moved as the transaction refreshes them."""
    statistics: Statistics
    step: Callable[[str], AbstractContextManager[None]]
    """Put it around what should count as a step of its own in the refresh's timings."""
    fresh: Collection[int] = frozenset()
    """Stream tables written in this very transaction: tasks cannot see them yet."""
    changes: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """What was read of the changes of relations; all stream tables that one transaction refreshes share it."""
    automatic: bool = True
    """Whether a source may prefer to be recomputed (refresh_mode AUTO)."""
    forgotten: str = "fallback"
    """What to do when a source no longer knows what changed since a version: 'fallback' recomputes, or 'error'."""
    owner: AsOwner | None = None
    """The way to run the owner's SQL; set before the first read."""

    @cached_property
    def exported(self) -> str:
        """The snapshot of the refresh transaction, for other sessions to read in."""
        row = self.conn.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        return str(row[0])

    @property
    def as_owner(self) -> AsOwner:
        """The way to run the owner's SQL."""
        assert self.owner is not None, "sources are read only under the owner's rights"
        return self.owner


class Source(Protocol):
    """One relation during one refresh of one stream table. What has a body here may be left as it is."""

    @property
    def name(self) -> str:
        """Under which its version stands in the frontier; sources that move together share one."""

    def head(self) -> Version:
        """The version that this refresh reads."""

    def pending(self, since: Version | None) -> Pending:
        """What is new since a version; None: it was never read. Called before anything else is read."""

    def delta(self, leaf: Leaf, since: Version | None) -> Rows | None:
        """What changed in a leaf, with weights; None when it is known that nothing did."""

    def read(self, leaf: Leaf, restriction: Restriction | None, keys: Sequence[int] | None = None) -> Rows:
        """The leaf now; with `keys`, these computed columns alone and how often each combination occurs."""

    def cost(self, leaf: Leaf, sql: str, keys: int) -> float:
        """About how many rows are touched to find those under so many keys of an expression."""

    def lend(self) -> None:
        """Let PostgreSQL read all rows: under the relation's own name, or under its `lent_name`."""
        return

    @property
    def changes(self) -> int:
        """How many changes it had for this refresh, as far as they were counted."""
        return 0

    def effort(self) -> Mapping[str, int]:
        """What reading has cost beyond PostgreSQL (files, bytes), for people; empty if nothing."""
        return {}


class Kind(Protocol):
    """A kind of source, as long as an engine is connected. What has a body here may be left as it is."""

    name: str
    """As in `Origin.source`, and in the catalog (`pgt_dependencies.source_type`)."""
    found_by: str = "NULL::jsonb"
    """SQL over `c`, a row of pg_class: not NULL if the relation is of this kind, and then what `origin` needs."""
    hint: str | None = None
    """The payload of a notification that something of this kind may have moved."""

    def origin(self, found: Any) -> Origin:
        """The origin of a relation that `found_by` has found."""

    def resolve_names(self, conn: Connection, query: str) -> str:  # noqa: ARG002
        """The user's query with names that only this kind understands replaced by those of its relations."""
        return query

    def capture(self, conn: Connection, used: Sequence[Used], role: str) -> None:
        """From now on keep the changes of relations of this kind, for a stream table of that role."""
        return

    def open(self, reading: Reading, used: Sequence[Used]) -> Mapping[int, Source]:
        """The relations of this kind that a stream table reads, by oid."""

    # -- between refreshes -----------------------------------------------------------------------------------

    def follow(self, conn: Connection) -> None:
        """Notice what has moved, and what DDL did, where no trigger of PostgreSQL tells. Call it in autocommit."""
        return

    def moved(self, conn: Connection) -> set[int]:  # noqa: ARG002
        """Relations (oids) that were seen to have moved since this was last asked."""
        return set()

    def told(self) -> set[int]:
        """Relations that have changed, as another thread has said since this was last asked; never a round trip."""
        return set()

    def polled(self, conn: Connection) -> set[int]:  # noqa: ARG002
        """Relations that cannot tell of changes: they must be looked at."""
        return set()

    def finish(self) -> None:
        """The refresh transaction is over: let go of what was read in it."""
        return

    def tidy(self, conn: Connection, living: Collection[int], relations: Collection[int]) -> None:
        """Drop temporary tables but those of these stream tables and relations."""
        return

    def forget(self) -> None:
        """Temporary tables are gone: a transaction was rolled back, or the session is another one."""
        return

    def close(self) -> None:
        """Let go of connections."""
        return
