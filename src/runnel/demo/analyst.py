"""The other side of the lake: DuckDB asks its questions, and measures when it sees what was committed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runnel.demo.duck import LAKE, ask
from runnel.demo.story import Question, Story
from runnel.demo.traffic import Tally

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SECONDS_BACK = 15
"""How long ago `{then}` is."""

_SECONDS_PER_LOOK = 0.05
_SECONDS_PER_ROUND = 2.0

_THEN = f"""
SELECT coalesce(max(snapshot_id) FILTER (snapshot_time <= now() - INTERVAL {SECONDS_BACK} SECOND), {{first}}) AS then,
       max(snapshot_id) AS now
FROM {LAKE}.snapshots() WHERE snapshot_id >= {{first}}
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a question, and what it took to get them."""

    rows: list[dict[str, Any]]
    milliseconds: float
    query: str


@dataclass(slots=True)
class Waits:
    """Seconds from the commit in PostgreSQL until DuckDB saw it in the lake, one per addition."""

    seconds: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Analyst:
    """Two threads with a connection each: one asks the story's questions, one watches for additions."""

    def __init__(self, story: Story, duck: DuckDBPyConnection, tally: Tally) -> None:
        self.answers: dict[str, Answer] = {}
        self.waits = Waits()
        self.error: Exception | None = None
        self._story = story
        self._duck = duck
        self._tally = tally
        self._first = current_snapshot(duck)
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(step,), name=f"demo-duckdb-{number}", daemon=True)
            for number, step in enumerate((self._watch, self._ask_all))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def await_last(self, seconds: float) -> None:
        """Let the additions that are on their way arrive."""
        deadline = time.monotonic() + seconds
        while self._tally.commits and time.monotonic() < deadline and self.error is None:
            time.sleep(_SECONDS_PER_LOOK)

    def answer(self, question: Question, conn: DuckDBPyConnection | None = None) -> Answer:
        """Ask DuckDB once."""
        duck = conn or self._duck
        query: str = question.query
        if "{then}" in query:
            snapshots = ask(duck, _THEN.format(first=self._first))[0]
            for name in ("then", "now"):
                query = query.replace(f"{{{name}}}", str(snapshots[name]))
        began = time.perf_counter()
        rows = ask(duck, query)
        return Answer(rows, (time.perf_counter() - began) * 1000, query)

    def _guarded(self, step: Any) -> None:
        conn = self._duck.cursor()
        try:
            step(conn)
        except Exception as error:
            self.error = error
        finally:
            conn.close()

    def _watch(self, conn: DuckDBPyConnection) -> None:
        commits = self._tally.commits
        while not self._stopping.is_set():
            found = conn.execute(self._story.newest).fetchone()
            seen, now = (found[0] if found else None) or 0, time.monotonic()
            while commits and commits[0][0] <= seen:
                self.waits.seconds.append(now - commits.popleft()[1])
            self._stopping.wait(_SECONDS_PER_LOOK)

    def _ask_all(self, conn: DuckDBPyConnection) -> None:
        while not self._stopping.is_set():
            for question in self._story.questions:
                if question.asked_in == "DuckDB":
                    self.answers[question.title] = self.answer(question, conn)
            self._stopping.wait(_SECONDS_PER_ROUND)


def current_snapshot(duck: DuckDBPyConnection) -> int:
    """The lake's newest snapshot."""
    return int(ask(duck, f"SELECT max(snapshot_id) AS head FROM {LAKE}.snapshots()")[0]["head"])
