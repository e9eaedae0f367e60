"""Messages that PostgreSQL cannot hold as they are: they are taken in as text, and keep none that follows waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from runnel.relay.arrival import Reception
from runnel.relay.config import Pipeline
from runnel.relay.port import Arrival
from runnel.relay.sources import as_json

Db = psycopg.Connection[Any]


@dataclass
class Handed:
    """A source with these messages."""

    arrived: Sequence[Arrival]
    acknowledged: list[bool] = field(default_factory=list)

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:
        return self.arrived

    def acknowledge(self) -> None:
        self.acknowledged.append(True)

    def close(self) -> None:
        pass


def test_what_is_no_json_for_postgresql_is_taken_as_text(db: Db) -> None:
    db.execute("SELECT tide.inbox_create('arrived', p_schema := 'public')")
    sent = {
        "plain": '{"n": 1.10}',
        "half": r'{"half a character": "\ud800"}',
        "endless": "[1e200000]",
        "nothing": r'{"nul": "\u0000"}',
        "deep": "[" * 900 + "]" * 900,
        "nul\0": "2",
        "odd\udcff": "3",
    }
    arrivals = [Arrival(key, as_json(text), {"of": key}) for key, text in sent.items()]
    source = Handed(arrivals)
    pipeline = Pipeline("in", "arrived", "redis", {}, owner="postgres", inbox=True)
    db.execute("SELECT tide.relay_set_inbox('in', 'arrived', '{}', p_source => 'redis', p_enabled => false)")
    assert Reception(db, pipeline, source).step(0) == len(sent) and source.acknowledged
    found = dict(db.execute("SELECT event_id, payload FROM arrived_inbox").fetchall())
    assert found.pop("deep") is not None
    assert found == {
        "plain": {"n": 1.1},
        "half": {"text": sent["half"]},
        "endless": {"text": "[1e200000]"},
        "nothing": {"text": sent["nothing"]},
        "nul": 2,
        "odd?": 3,
    }
    # And once more: it is known.
    assert Reception(db, pipeline, source).step(0) == len(sent)
    assert db.execute("SELECT count(*) FROM arrived_inbox").fetchone() == (len(sent),)
