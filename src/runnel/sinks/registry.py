"""The kinds of sinks there are, and all of them as one: what the engine works with.

A new kind is a folder beside `ducklake/`, `files/` and `outbox/`, and a line in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from runnel.model.names import Name
from runnel.plan.stage import Origin
from runnel.ports.sink import Later, Publication, Published, Refreshed, Result, Sink, Wish
from runnel.sinks.ducklake.sink import DuckLakeSink
from runnel.sinks.files.sink import FilesSink
from runnel.sinks.known import Known
from runnel.sinks.leftovers import Leftovers
from runnel.sinks.options import given
from runnel.sinks.outbox.sink import OutboxSink
from runnel.sinks.shared import Shared
from runnel.sinks.transaction import taking_part

if TYPE_CHECKING:
    from runnel.spark.session import Sessions

Connection = psycopg.Connection[Any]

KINDS: tuple[Callable[[Shared], Sink], ...] = (OutboxSink, FilesSink, DuckLakeSink)
"""In the order in which they publish: whoever keeps other writers waiting until the COMMIT comes last."""


@dataclass(frozen=True, slots=True)
class Publications:
    """What one transaction does to all sinks."""

    parts: Mapping[str, Publication]

    def put(self, pgt_id: int, wish: Wish) -> None:
        """Hand each sink its part of a wish."""
        for publication, part in zip(self._all(), _divided(wish, len(self.parts)), strict=True):
            publication.put(pgt_id, part)

    def drop(self, pgt_id: int, why: str) -> None:
        """Remove what a stream table has published anywhere."""
        for publication in self._all():
            publication.drop(pgt_id, why)

    def prepare(self, result: Result) -> None:
        """Let each sink do what it must before the stream table changes."""
        for publication in self._all():
            publication.prepare(result)

    def wants(self, pgt_id: int, *, changed: bool, definition_version: int) -> bool:
        """Whether any sink has something to publish."""
        return any(p.wants(pgt_id, changed=changed, definition_version=definition_version) for p in self._all())

    def publish(self, result: Result, refreshed: Refreshed) -> Published | None:
        """Publish everywhere; what came of it, added up."""
        done = [each for p in self._all() if (each := p.publish(result, refreshed)) is not None]
        return _sum(done) if done else None

    def later(self) -> Sequence[Later]:
        """What any sink has left for later."""
        return [later for publication in self._all() for later in publication.later()]

    def publish_later(self, later: Later) -> Published:
        """Hand it to the sink that has left it."""
        return self.parts[later.sink].publish_later(later)

    def before_commit(self) -> None:
        """Let each sink commit what it has begun elsewhere."""
        for publication in self._all():
            publication.before_commit()

    def committed(self) -> None:
        """Tell everyone."""
        for publication in self._all():
            publication.committed()

    def undo(self, error: BaseException) -> None:
        """Tell everyone."""
        for publication in self._all():
            publication.undo(error)

    def _all(self) -> Iterator[Publication]:
        return iter(self.parts.values())


@dataclass(frozen=True, slots=True)
class Sinks:
    """All sinks of an engine."""

    kinds: tuple[Sink, ...]
    shared: Shared
    name = "all"

    @property
    def options(self) -> Sequence[str]:
        """The arguments of create and alter that are about sinks."""
        return [option for sink in self.kinds for option in sink.options]

    def given(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What a request says about sinks."""
        return given(args, self.options)

    def taking_part(self, conn: Connection) -> AbstractContextManager[Publication]:
        """Put this around a transaction in which anything is defined, published or dropped."""
        return taking_part(self, conn)

    def publication(self, conn: Connection) -> Publications:
        """What a transaction does to all sinks."""
        return Publications({sink.name: sink.publication(conn) for sink in self.kinds})

    def wish(self, conn: Connection, args: Mapping[str, Any], pgt_id: int | None, name: Name, role: str) -> Wish:
        """What a request asks of all sinks."""
        return _together([sink.wish(conn, args, pgt_id, name, role) for sink in self.kinds])

    def describe(self, conn: Connection, pgt_id: int) -> str | None:
        """All ways in which a stream table is published."""
        # People look for the lake first.
        return "; ".join(text for sink in reversed(self.kinds) if (text := sink.describe(conn, pgt_id))) or None

    def upstream(self, conn: Connection, origin: Origin) -> int | None:
        """The stream table that any sink publishes as the relation of this origin."""
        found = (sink.upstream(conn, origin) for sink in self.kinds)
        return next((pgt_id for pgt_id in found if pgt_id is not None), None)

    def tidy(self, conn: Connection, results: Callable[[int], Result]) -> None:
        """Give each sink a quiet moment."""
        for sink in self.kinds:
            sink.tidy(conn, results)

    def close(self) -> None:
        """Let go of everything."""
        for sink in self.kinds:
            sink.close()
        self.shared.close()


def open_sinks(dsn: str, sessions: Sessions, leftovers: Leftovers, outboxes: Known[Any]) -> Sinks:
    """All kinds of sinks, for one worker; `leftovers` and `outboxes` are its engine's."""
    shared = Shared(dsn, sessions, leftovers, outboxes)
    return Sinks(tuple(kind(shared) for kind in KINDS), shared)


def _together(wishes: Sequence[Wish]) -> Wish:
    before, after = tuple(w.before for w in wishes), tuple(w.after for w in wishes)
    return Wish(*(None if all(part is None for part in parts) else parts for parts in (before, after)))


def _divided(wish: Wish, count: int) -> list[Wish]:
    nothing = (None,) * count
    before, after = (side if isinstance(side, tuple) else nothing for side in (wish.before, wish.after))
    return [Wish(b, a) for b, a in zip(before, after, strict=True)]


def _sum(done: Sequence[Published]) -> Published:
    timings: dict[str, float] = {}
    for each in done:
        for step, milliseconds in each.timings.items():
            timings[step] = timings.get(step, 0.0) + milliseconds
    return Published(
        inserted=max(each.inserted for each in done),
        deleted=max(each.deleted for each in done),
        snapshot=next((each.snapshot for each in done if each.snapshot is not None), None),
        reason="; ".join(each.reason for each in done if each.reason) or None,
        timings=timings,
    )
