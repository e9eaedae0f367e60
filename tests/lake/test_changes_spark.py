"""Changes that tasks read are those that the driver reads, between any two versions of random histories."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runnel.lake.format.catalog import column_history, find_table, open_lake
from runnel.lake.read.changes import Expired, plan_changes, read_changes
from runnel.spark.ducklake.leaves import changes_frame
from runnel.spark.session import Sessions
from tests.lake.duck import Duck
from tests.lake.histories import History
from tests.lake.rows import from_arrow

STEPS = 24


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "inline"), [("plain", 0), ("plain", 10), ("encrypted", 10)])
def test_tasks_and_driver_read_the_same_changes(
    duck: Callable[..., Duck], db: psycopg.Connection[Any], data_path: str, sessions: Sessions, kind: str, inline: int
) -> None:
    client = duck(data_path, encrypted=kind == "encrypted")
    history = History(client, 7 + inline, inline=inline)
    for _ in range(STEPS):
        history.step()
    lake, chance, compared = open_lake(db, "lake", "ducklake"), random.Random(inline), 0
    alive = [n for n in client.snapshots() if find_table(db, lake, "main", "t", n) is not None]
    for after, to in [sorted(chance.sample(alive, 2)) for _ in range(6)]:
        table = find_table(db, lake, "main", "t", to)
        assert table is not None
        try:
            changes = plan_changes(db, lake, table.id, after, to, ["part", "id"])
        except Expired:
            continue
        names = [c.name for c in changes.columns]
        frame = changes_frame(
            sessions, changes.only(names[::-1]), column_history(db, lake, table.id), ["first", "second"]
        )
        theirs = _weighted(from_arrow(frame.toArrow()))
        ours = _weighted([(row[1], row[0], row[-1]) for row in from_arrow(read_changes(changes))])
        assert theirs == ours, f"changes in ({after}, {to}]\n" + "\n".join(history.log)
        compared += 1
    assert compared


def _weighted(rows: list[tuple[Any, ...]]) -> Counter[Any]:
    bag: Counter[Any] = Counter()
    for *values, weight in rows:
        bag[tuple(values)] += int(weight)
    return bag
