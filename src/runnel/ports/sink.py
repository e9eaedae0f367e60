"""What a sink is to a refresh: where a stream table is published, whatever is on the other side.

A `Sink` lives as long as the engine's connections. Each transaction gets a `Publication` of it, and goes through these
steps; a `Sink` without anything to do for a stream table does nothing in any of them:

    put, drop        what a definition says about sinks
    prepare          before the stream table changes
    wants, publish   after it has changed, in the same transaction
    before_commit    when everything is written
    COMMIT, then `committed`; or ROLLBACK, then `undo`
    publish_later    what had to wait for the commit, each in a transaction (and a `Publication`) of its own

What a sink knows of a stream table is its own: nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from runnel.errors import TransientError
from runnel.model.names import Name
from runnel.model.types import Column
from runnel.plan.stage import Origin

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]


class Conflict(TransientError):
    """Another writer was faster: roll back and do the same work again, at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A stream table as its sink sees it; once it is refreshed its delta still lies in its temporary table."""

    id: int
    name: Name
    relid: int
    owner: str
    """The role with whose rights its rows are read."""
    columns: tuple[Column, ...]
    delta: str
    """The temporary table of changes: columns o<i> and weight w."""
    query: str
    """The defining query as its author wrote it."""
    definition_version: int
    scales: Mapping[str, int] = field(default_factory=dict)
    """Digits after the point, of numeric columns whose type does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The refresh whose outcome is published."""

    id: int
    action: str
    changed: bool
    inserted: int
    deleted: int
    frontier: Mapping[str, Any]
    at: str
    """The moment that the rows reflect."""
    held: str | None = None
    """Why those who only show good versions should keep the one they have; None: this one is good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a publication did."""

    inserted: int
    deleted: int
    snapshot: int | None = None
    """Its number on the other side, if there are such numbers."""
    reason: str | None = None
    """What the history should say about it, if it was out of the ordinary."""
    timings: dict[str, float] = field(default_factory=dict)
    """Milliseconds per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A publication that waits for the commit of the refresh, and has a transaction of its own."""

    sink: str
    result: Result
    refreshed: Refreshed
    why: str
    """Why it is made; the sink's own words."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a stream table is to be published from now on: checked, but nothing is changed yet."""

    before: object | None
    """How it is published now, in a form that only its sink reads; None: not at all."""
    after: object | None

    @property
    def changes(self) -> bool:
        """Whether anything would be different."""
        return self.before != self.after

    @property
    def publishes(self) -> bool:
        """Whether the stream table has a sink afterwards."""
        return self.after is not None


class Publication(Protocol):
    """What one transaction does to a sink."""

    def put(self, pgt_id: int, wish: Wish) -> None:
        """Publish a stream table in another way from now on. What was published goes, unless the new way needs it."""

    def drop(self, pgt_id: int, why: str) -> None:
        """Remove whatever a stream table has published, as far as it is in reach, and forget it."""

    def prepare(self, result: Result) -> None:
        """Do what must be done before the stream table changes."""

    def wants(self, pgt_id: int, *, changed: bool, definition_version: int) -> bool:
        """Whether there is anything to publish after a refresh, which may have changed nothing."""

    def publish(self, result: Result, refreshed: Refreshed) -> Published | None:
        """Publish what a refresh did; None when there was nothing to do, or when it is done `later`."""

    def later(self) -> Sequence[Later]:
        """What is to be published when this transaction has committed."""

    def publish_later(self, later: Later) -> Published:
        """Publish what a former transaction has left for this one."""

    def before_commit(self) -> None:
        """The last step before the COMMIT: what has transactions of its own commits them."""

    def committed(self) -> None:
        """The transaction has committed: everything published is there to stay."""

    def undo(self, error: BaseException) -> None:
        """The transaction has failed: nothing of it may remain, now or, if that cannot be, in the end."""


class Sink(Protocol):
    """One kind of sink."""

    @property
    def name(self) -> str:
        """By which it is told from others."""

    @property
    def options(self) -> Sequence[str]:
        """The arguments of create and alter that are about it."""

    def publication(self, conn: Connection) -> Publication:
        """Its part in a transaction on that connection."""

    def wish(self, conn: Connection, args: Mapping[str, Any], pgt_id: int | None, name: Name, role: str) -> Wish:
        """What a request of that role asks for, or an error that says why it cannot be; changes nothing.

        `pgt_id` is None for a stream table that is not there yet.
        """

    def describe(self, conn: Connection, pgt_id: int) -> str | None:
        """How a stream table is published, in one line for people; None if it is not."""

    def upstream(self, conn: Connection, origin: Origin) -> int | None:
        """The stream table that is published as the relation of this origin, if there is one."""

    def tidy(self, conn: Connection, results: Callable[[int], Result]) -> None:
        """Do what was left for a quiet moment: remove what dropped stream tables have published, finish, clean up.

        `results` describes a stream table inside a transaction that the sink has begun.
        """

    def close(self) -> None:
        """Let go of connections and threads."""
