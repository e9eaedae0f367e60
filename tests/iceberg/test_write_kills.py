"""SIGKILL for the server while it takes commits: a commit is there whole or not at all, once, and all readers agree."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from runnel.http.place import HttpPlace
from runnel.lake.attached import load_lake
from runnel.lake.upkeep.maintain import maintain
from runnel.lake.upkeep.settings import Settings
from tests.iceberg.clients import catalog, ducks
from tests.iceberg.comparing import assert_same
from tests.iceberg.server_process import POINTS
from tests.lake.duck import Duck
from tests.lake.health import assert_counts_right, assert_healthy, known_files, stored_files
from tests.robustness.processes import Process

KILLS = int(os.environ.get("RUNNEL_LAKE_KILLS", "20"))
SEED = int(os.environ.get("RUNNEL_LAKE_SEED", "1"))

Held = dict[int, str]


@dataclass(frozen=True)
class Served:
    """A server of another process, as its clients see it."""

    url: str


@dataclass(frozen=True)
class Deed:
    """What a client does, and what the table is afterwards."""

    name: str
    act: Callable[[], Any]
    after: Held


@contextlib.contextmanager
def served(dsn: str, folder: Path, point: str) -> Iterator[tuple[Process, Any]]:
    process = Process([sys.executable, "-m", "tests.iceberg.server_process", dsn, str(folder), point])
    try:
        found = re.search(r"http://\S+", process.wait_for("listening on"))
        assert found
        yield process, Served(found[0])
    finally:
        process.kill()


def deeds(http: Any, token: str, held: Held, number: int) -> list[Deed]:
    """What can be done to a table that holds these rows."""
    first, rest = 1000 * (number + 1), number % 7
    new = {first + i: "appended" for i in range(20)}
    chosen = {id for id in held if id % 7 == rest}

    def by_duckdb(warehouse: str, text: str) -> Callable[[], Any]:
        def act() -> None:
            with ducks(http, warehouse, token=token) as writer:
                writer.execute("SET http_retries = 0")
                writer.execute(text)

        return act

    def table() -> Any:
        return catalog(http, "lake@v2", token=token).load_table("main.t")

    return [
        Deed("PyIceberg appends", lambda: table().append(rows(new)), held | new),
        Deed(
            "PyIceberg overwrites",
            lambda: table().overwrite(rows(new), overwrite_filter=f"id IN ({', '.join(map(str, chosen))})"),
            {id: who for id, who in held.items() if id not in chosen} | new,
        ),
        Deed(
            "DuckDB inserts",
            by_duckdb("lake", f"INSERT INTO ice.main.t SELECT i, 'appended' FROM range({first}, {first + 20}) r(i)"),
            held | new,
        ),
        Deed(
            "DuckDB updates",
            by_duckdb("lake", f"UPDATE ice.main.t SET who = 'updated {number}' WHERE id % 7 = {rest}"),
            held | dict.fromkeys(chosen, f"updated {number}"),
        ),
        Deed(
            "DuckDB deletes",
            by_duckdb("lake@v2", f"DELETE FROM ice.main.t WHERE id % 7 = {rest} AND id % 2 = 0"),
            {id: who for id, who in held.items() if id not in chosen or id % 2},
        ),
    ]


def rows(held: Held) -> pa.Table:
    return pa.table({"id": pa.array(held, pa.int64()), "who": pa.array(held.values(), pa.string())})


def now(client: Duck) -> Held:
    found = client.rows("SELECT id, who FROM t")
    assert len({id for id, _ in found}) == len(found), "rows are there twice"
    return dict(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_kills_during_commits_lose_and_double_nothing(
    dsn: str, duck: Callable[..., Duck], db: psycopg.Connection[Any], lake: str, tmp_path: Path
) -> None:
    folder, chance = tmp_path / "served", random.Random(SEED)
    token = HttpPlace(folder).token()
    client = duck(lake)
    client.run("SET python_enable_replacements = false").run("CREATE TABLE t (id BIGINT, who VARCHAR)")
    client.run("INSERT INTO t SELECT i, 'first' FROM range(200) r(i)").run("CREATE TABLE noise (i BIGINT)")
    held = now(client)
    outcomes: Counter[tuple[str, bool]] = Counter()
    with noise(duck()) as made:
        for number in range(KILLS):
            point = [*POINTS, "any"][number % 4]
            with served(dsn, folder, point) as (process, http):
                # Each kind of commit meets each point.
                deed = deeds(http, token, held, number)[number % 5]
                failed = kill_during(deed, process, point, chance)
            found = now(client)
            assert found in (held, deed.after), f"{deed.name} at {point}: neither as before nor as wanted"
            is_there = found == deed.after
            if point == "committed":
                assert failed and is_there
            elif point != "any":
                assert failed and not is_there
            elif not failed:
                assert is_there, "it was said to be there"
            outcomes[point, is_there] += 1
            if not is_there:
                with served(dsn, folder, "none") as (_, again):
                    deeds(again, token, held, number)[number % 5].act()
                assert now(client) == deed.after
            held = deed.after
    assert client.rows("SELECT count(*), count(DISTINCT i) FROM noise") == [(len(made), len(made))] and made
    print(f"{KILLS} kills: {dict(outcomes)}, {len(made)} commits of another writer")
    with served(dsn, folder, "none") as (_, http):
        agree(client, http)
        assert_all_there(db, lake)
        assert_healthy(db)
        assert_counts_right(client, "t")
        # What killed commits have written is found by maintenance, and belonged to nobody.
        with psycopg.connect(dsn, autocommit=True) as observer:
            swept = maintain(db, observer, load_lake(db, "lake"), Settings(orphan_grace=dt.timedelta(0)))
        assert swept.removed_orphans > 0 and stored_files(lake) <= known_files(db)
        assert now(client) == held
        agree(client, http)


def assert_all_there(db: psycopg.Connection[Any], lake: str) -> None:
    """No file is missing that a snapshot needs. Those that are to be removed may have been, by who wrote them."""
    found = db.execute("SELECT path FROM ducklake.ducklake_files_scheduled_for_deletion").fetchall()
    needed = known_files(db) - {path.removeprefix(lake) for (path,) in found}
    assert needed and needed <= stored_files(lake), "the catalog names files that are not there"


def kill_during(deed: Deed, process: Process, point: str, chance: random.Random) -> bool:
    """Kill the server while a client commits; says whether the client was told so."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            deed.act()
        except Exception as error:  # noqa: BLE001  (whatever a client makes of a broken connection)
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    if point in POINTS:
        process.wait_for("reached")
    else:
        time.sleep(chance.uniform(0.1, 4))
    process.kill()
    thread.join(120)
    assert not thread.is_alive(), f"{deed.name}: the client hangs"
    return bool(failed)


@contextlib.contextmanager
def noise(client: Duck) -> Iterator[list[int]]:
    """Another writer, of the other kind, all the while."""
    done, ended = list[int](), threading.Event()
    errors: list[Exception] = []

    def work() -> None:
        while not ended.wait(0.3):
            try:
                client.run(f"INSERT INTO noise VALUES ({len(done)})")
            except Exception as error:  # noqa: BLE001
                errors.append(error)
                return
            done.append(len(done))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join(60)
    assert not errors, errors


def agree(client: Duck, http: Any) -> None:
    """The newest snapshots, by both readers, in both versions of the format."""
    for warehouse in ("lake", "lake@v2"):
        table = catalog(http, warehouse).load_table("main.t")
        touching = client.rows(
            "SELECT snapshot_id FROM ducklake_snapshots('lake') WHERE commit_message LIKE 'Iceberg%' ORDER BY 1"
        )
        wanted = [*(at for (at,) in touching), client.head()]
        with ducks(http, warehouse) as reader:
            assert assert_same(client, table, reader, "t", wanted, lambda where=warehouse: where) == len(wanted)
