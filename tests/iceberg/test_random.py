"""Every snapshot of random histories: readers of Iceberg get what DuckDB gets from DuckLake."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runnel.http.server import HttpServer
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same, damaged
from tests.lake.duck import Duck
from tests.lake.histories import History

SEED = int(os.environ.get("RUNNEL_LAKE_SEED", "1"))
HISTORIES = int(os.environ.get("RUNNEL_LAKE_HISTORIES", "1"))
STEPS = int(os.environ.get("RUNNEL_LAKE_STEPS", "16"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "inline"), [("plain", 0), ("plain", 10), ("partitioned", 10)])
@pytest.mark.parametrize("number", range(HISTORIES))
def test_every_snapshot_of_a_random_history(
    duck: Callable[..., Duck],
    db: psycopg.Connection[Any],
    lake: str,
    http: HttpServer,
    kind: str,
    inline: int,
    number: int,
) -> None:
    client = duck(lake)
    seed = SEED * 100_000 + number * 100 + inline + len(kind)
    history = History(client, seed, inline=inline, partitioned=kind == "partitioned")
    client.run("SET python_enable_replacements = false")
    compared = 0
    for step in range(STEPS):
        history.step()
        if step == STEPS // 2:
            client.run("CALL ducklake_expire_snapshots('lake', versions => [1, 2, 3])")
        # What was generated meanwhile must not show through later.
        if step % 6 == 5 or step == STEPS - 1:
            for warehouse in ("lake", "lake@v2"):
                compared += compare(client, db, http, warehouse, history)
    assert compared >= 4


def compare(client: Duck, db: psycopg.Connection[Any], http: HttpServer, warehouse: str, history: History) -> int:
    table = catalog(http, warehouse).load_table("main.t")
    listed = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    first = db.execute("SELECT min(begin_snapshot) FROM ducklake.ducklake_table").fetchone()
    assert first and listed == [at for at in client.snapshots() if at >= first[0]]
    with ducks(http, warehouse) as ice:
        whole = [at for at in listed if not damaged(db, at)]
        return assert_same(
            client, table, ice, "t", whole, lambda: f"{warehouse}, seed {history.seed}\n" + "\n".join(history.log)
        )
