"""Writers of both kinds in turns and at once: at every snapshot all readers agree, and nothing is lost."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from runnel.http.place import HttpPlace
from runnel.http.server import HttpServer
from runnel.lake.attached import load_lake
from runnel.lake.format.catalog import find_table, head
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same, damaged
from tests.iceberg.test_random import tidy
from tests.lake.duck import Duck
from tests.lake.health import assert_healthy
from tests.lake.writing import append
from tests.lake.writing import writer as opened

SEED = int(os.environ.get("RUNNEL_LAKE_SEED", "1"))
STEPS = int(os.environ.get("RUNNEL_LAKE_STEPS", "16"))
SECONDS = float(os.environ.get("RUNNEL_LAKE_SECONDS", "15"))
"""`make soak` asks for a minute."""


@pytest.fixture
def token(http: HttpServer, tmp_path: Path) -> str:
    return HttpPlace(tmp_path / "http").token()


def rows(first: int, count: int, who: str) -> pa.Table:
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "part": pa.array([i % 3 for i in range(count)], pa.int32()), "who": [who] * count})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("inline", [0, 10])
def test_clients_write_in_turns(
    dsn: str,
    duck: Callable[..., Duck],
    db: psycopg.Connection[Any],
    lake: str,
    http: HttpServer,
    token: str,
    inline: int,
) -> None:
    client, chance = duck(lake), random.Random(SEED * 1000 + inline)
    client.run("SET python_enable_replacements = false")
    client.run(f"CALL lake.set_option('data_inlining_row_limit', {inline})")
    client.run("CREATE TABLE t (id BIGINT, part INTEGER, who VARCHAR)")
    log: list[str] = []
    last = 0
    held: set[int] = set()
    for step in range(STEPS):
        writer = chance.choice(["ducklake", "runnel", "pyiceberg", "ice", "ice2", "tidy"])
        deed = chance.choice(["insert", "insert", "delete", "update"])
        count, rest = chance.choice([1, 5, 40]), chance.randrange(7)
        log.append(f"{writer} {deed} {count} {rest}")
        where = f"id % 7 = {rest} AND id % 2 = {step % 2}"
        if writer == "tidy":
            tidy(dsn)
            continue
        if deed == "insert":
            held |= set(range(last, last + count))
        elif deed == "delete":
            held = {i for i in held if not (i % 7 == rest and i % 2 == step % 2)}
        text = {
            "insert": f"INSERT INTO {{}} SELECT i, i % 3, '{writer}' FROM range({last}, {last + count}) r(i)",
            "delete": f"DELETE FROM {{}} WHERE {where}",
            "update": f"UPDATE {{}} SET who = who || '+' WHERE {where}",
        }[deed]
        last += count if deed == "insert" else 0
        if writer == "runnel" and deed == "insert":
            by_runnel(dsn, rows(last - count, count, writer))
        elif writer in ("ducklake", "runnel"):
            client.run(text.format("t"))
        elif writer == "pyiceberg":
            table = catalog(http, "lake@v2", token=token).load_table("main.t")
            if deed == "insert":
                table.append(rows(last - count, count, writer))
            elif deed == "delete":
                gone = [i for i in range(last) if i % 7 == rest and i % 2 == step % 2]
                table.delete(f"id IN ({', '.join(map(str, gone or [-1]))})")
            else:
                table.append(rows(10_000 + step * 100, 2, "extra"))
                held |= {10_000 + step * 100, 10_001 + step * 100}
        else:
            with ducks(http, "lake" if writer == "ice" else "lake@v2", token=token) as other:
                other.execute(text.format("ice.main.t"))
        found = sorted(row[0] for row in client.rows("SELECT id FROM t"))
        assert found == sorted(held), log
        if step % 5 == 4 or step == STEPS - 1:
            for warehouse in ("lake", "lake@v2"):
                table = catalog(http, warehouse).load_table("main.t")
                listed = [s.snapshot_id for s in table.metadata.snapshots if not damaged(db, s.snapshot_id)]
                with ducks(http, warehouse) as reader:
                    assert assert_same(client, table, reader, "t", listed, lambda: "\n".join(log)) > 0
    ids = [row[0] for row in client.rows("SELECT rowid FROM t")]
    assert None not in ids and len(ids) == len(set(ids)), log


def by_runnel(dsn: str, given: pa.Table) -> None:
    """Runnel's own writer, as its sinks use it."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        found = load_lake(conn, "lake")
        table = find_table(conn, found, "main", "t", head(conn, found))
    assert table is not None
    with opened(dsn, found) as writer:
        append(writer, table, given)


@pytest.mark.slow
def test_writers_of_both_kinds_at_once_lose_nothing(
    duck: Callable[..., Duck], lake: str, http: HttpServer, token: str, db: psycopg.Connection[Any]
) -> None:
    clients = [duck(lake), duck()]
    clients[0].run("CREATE TABLE t (id BIGINT, part INTEGER, who VARCHAR)")
    until = time.monotonic() + SECONDS
    done: dict[str, list[int]] = {}
    deleted: Counter[str] = Counter()
    failed: list[str] = []

    def work(name: str, number: int, act: Callable[[str, int], None]) -> None:
        """Blocks of ten rows; every fourth time one's oldest goes. A delete meets all the others' commits."""
        mine = done.setdefault(name, [])
        place, turn = number * 1_000_000, 0
        while time.monotonic() < until:
            deed = "delete" if turn % 4 == 3 and mine else "insert"
            turn += 1
            try:
                act(deed, mine[0] if deed == "delete" else place)
            except Exception as error:  # noqa: BLE001  (a conflict that its client gave up on: it wrote nothing)
                if not any(word in str(error).lower() for word in ("conflict", "requirement", "retr", "concurrent")):
                    failed.append(f"{name}: {error}")
                    return
                continue
            if deed == "delete":
                mine.pop(0)
                deleted[name] += 1
            else:
                mine.append(place)
                place += 10

    def by_pyiceberg(deed: str, place: int) -> None:
        table = catalog(http, "lake@v2", token=token).load_table("main.t")
        if deed == "insert":
            table.append(rows(place, 10, "p"))
        else:
            table.delete(f"id >= {place} AND id < {place + 10}")

    def by_duckdb(conn: duckdb.DuckDBPyConnection, table: str) -> Callable[[str, int], None]:
        def act(deed: str, place: int) -> None:
            if deed == "insert":
                conn.execute(f"INSERT INTO {table} SELECT i, 0, 'd' FROM range({place}, {place + 10}) r(i)")
            else:
                conn.execute(f"DELETE FROM {table} WHERE id >= {place} AND id < {place + 10}")

        return act

    with ducks(http, token=token) as iced:
        threads = [
            threading.Thread(target=work, args=args)
            for args in (
                ("pyiceberg 1", 1, by_pyiceberg),
                ("pyiceberg 2", 2, by_pyiceberg),
                ("ducklake", 3, by_duckdb(clients[1].conn, "t")),
                ("duckdb-iceberg", 4, by_duckdb(iced, "ice.main.t")),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    wanted = sorted(place + i for places in done.values() for place in places for i in range(10))
    assert sorted(row[0] for row in clients[0].rows("SELECT id FROM t")) == wanted
    assert clients[0].rows("SELECT count(*), count(DISTINCT rowid) FROM t") == [(len(wanted), len(wanted))]
    assert all(done.values()), {name: len(each) for name, each in done.items()}
    print(f"{SECONDS:g} s: blocks left { ({name: len(each) for name, each in done.items()}) }, deleted {dict(deleted)}")
    assert_healthy(db)
    for warehouse in ("lake", "lake@v2"):
        loaded = catalog(http, warehouse).load_table("main.t")
        listed = [s.snapshot_id for s in loaded.metadata.snapshots if not damaged(db, s.snapshot_id)]
        with ducks(http, warehouse) as reader:
            assert assert_same(clients[0], loaded, reader, "t", listed[-5:], lambda where=warehouse: where) > 0
