"""Tables and changes at every version of random histories: what we read is what DuckDB reads."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from runnel.lake.format.catalog import find_table, open_lake
from runnel.lake.format.model import Lake, LakeTable
from runnel.lake.read.changes import Expired, plan_changes, read_changes
from runnel.lake.read.scan import plan_scan, read_all
from tests.lake.duck import Duck
from tests.lake.histories import History
from tests.lake.rows import comparable, from_arrow

SEED = int(os.environ.get("RUNNEL_LAKE_SEED", "1"))
HISTORIES = int(os.environ.get("RUNNEL_LAKE_HISTORIES", "1"))
STEPS = int(os.environ.get("RUNNEL_LAKE_STEPS", "16"))


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as opened:
        yield opened


def state(conn: psycopg.Connection[Any], lake: Lake, table: LakeTable, at: int) -> Counter[Any]:
    return Counter(from_arrow(read_all(plan_scan(conn, lake, table, at, row_ids=True))))


def expected(duck: Duck, at: int) -> Counter[Any]:
    return Counter(comparable(row) for row in duck.rows(f"SELECT *, rowid FROM t AT (VERSION => {at})"))


@pytest.mark.parametrize(("kind", "inline"), [("plain", 0), ("plain", 10), ("partitioned", 10), ("encrypted", 10)])
@pytest.mark.parametrize("number", range(HISTORIES))
def test_every_version_of_a_random_history(
    duck: Callable[..., Duck], conn: psycopg.Connection[Any], data_path: str, kind: str, inline: int, number: int
) -> None:
    client = duck(data_path, encrypted=kind == "encrypted")
    seed = SEED * 100_000 + number * 100 + inline + len(kind)
    history = History(client, seed, inline=inline, partitioned=kind == "partitioned")
    chance = random.Random(seed)
    for step in range(STEPS):
        history.step()
        if step == STEPS // 2:
            client.run(f"CALL ducklake_expire_snapshots('lake', versions => [{', '.join(map(str, range(1, 4)))}])")
        if step % 8 == 7 or step == STEPS - 1:
            lake = open_lake(conn, "lake", "ducklake")
            check(client, conn, lake, history, chance)


def check(
    client: Duck,
    conn: psycopg.Connection[Any],
    lake: Lake,
    history: History,
    chance: random.Random,
) -> None:
    """Compare some versions with DuckDB, and replay changes between them."""
    log = "\n".join(history.log)
    alive = [n for n in client.snapshots() if find_table(conn, lake, "main", "t", n) is not None]
    for at in {*chance.sample(alive, min(4, len(alive))), alive[-1]}:
        table = find_table(conn, lake, "main", "t", at)
        assert table is not None
        if damaged(conn, at):
            continue
        assert state(conn, lake, table, at) == expected(client, at), f"seed {history.seed}, snapshot {at}\n{log}"
    for _ in range(4):
        after, to = sorted(chance.choices(alive, k=2))
        replay(conn, lake, after, to, f"seed {history.seed}, changes in ({after}, {to}]\n{log}")


def replay(conn: psycopg.Connection[Any], lake: Lake, after: int, to: int, message: str) -> None:
    """The state before plus the changes is the state after, in the columns and with the row ids of the latter."""
    table = find_table(conn, lake, "main", "t", to)
    assert table is not None
    for net in (True, False):
        try:
            changes = read_changes(plan_changes(conn, lake, table.id, after, to, net=net))
        except Expired:
            existing = {row[0] for row in conn.execute("SELECT snapshot_id FROM ducklake.ducklake_snapshot")}
            assert not set(range(after, to + 1)) <= existing, message
            return
        # The state before, in today's columns: the table's own definition applied to the older snapshot's files.
        before = state(conn, lake, table, after)
        total = before.copy()
        for row, weight in zip(
            from_arrow(changes.drop_columns(["snapshot_id", "weight"])), changes["weight"], strict=True
        ):
            total[row] += weight.as_py()
        assert {row: n for row, n in total.items() if n} == dict(state(conn, lake, table, to)), message
        assert all(after < n <= to for n in changes["snapshot_id"].to_pylist()), message


def damaged(conn: psycopg.Connection[Any], at: int) -> bool:
    """Whether DuckDB itself has written what it reads wrongly: two live delete files of one data file."""
    found = conn.execute(
        "SELECT 1 FROM ducklake.ducklake_delete_file WHERE begin_snapshot <= %(at)s"
        " AND (end_snapshot IS NULL OR end_snapshot > %(at)s) GROUP BY data_file_id HAVING count(*) > 1",
        {"at": at},
    )
    return found.fetchone() is not None
