"""Every snapshot of random histories: readers of Iceberg get what DuckDB gets from DuckLake."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runnel.http.server import HttpServer
from runnel.lake.attached import load_lake
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings
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
    dsn: str,
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
        if step % 7 == 6:
            tidy(dsn)
        # What was generated meanwhile must not show through later.
        if step % 6 == 5 or step == STEPS - 1:
            for warehouse in ("lake", "lake@v2"):
                compared += compare(client, db, http, warehouse, history)
    assert compared >= 4


def tidy(dsn: str) -> None:
    """Runnel's own maintenance: merged files, and delete files of its making."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn, autocommit=True) as observer:
        maintain(conn, observer, load_lake(conn, "lake"), Settings(min_files=3, deleted_share=0.6))


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
