"""Several clients of DuckDB commit to the lake all the time, and compact what is published, while refreshes go on."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import duckdb
import psycopg
import pytest

import runnel
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.duck import Duck
from tests.lake.health import assert_counts_right
from tests.lake.places import Place
from tests.lake.shop import QUERIES, Shop
from tests.lake.sizes import FULL, SECONDS, chance

MODES = ("merge", "append", "replace")
WRITERS = 3 if FULL else 2
# What DuckDB says when somebody else was first, or has just compacted what it looks at; its users try again.
LOST_RACES = (
    "conflict",
    "unique",
    "primary key",
    "concurrent",
    "could not serialize",
    "does not exist",
    "No such file",
)


@dataclass
class Client(threading.Thread):
    """A DuckDB in a thread of its own that does one thing again and again."""

    title: str
    place: Place
    act: Callable[[Duck, Client], None]
    stopping: threading.Event
    choice: random.Random
    pause: float
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        super().__init__(name=self.title, daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        try:
            with self.place.duck() as duck:
                while not self.stopping.is_set():
                    self._once(duck)
                    time.sleep(self.choice.uniform(0, 2 * self.pause))
        except BaseException as error:  # a broken client must fail the test, not end silently
            self.error = error

    def _once(self, duck: Duck) -> None:
        try:
            self.act(duck, self)
            self.counts["committed"] += 1
        except duckdb.Error as error:
            if not any(word in str(error).lower() for word in LOST_RACES):
                raise
            self.counts["lost races"] += 1
            # The transaction may be open, or already gone with the error.
            with contextlib.suppress(duckdb.Error):
                duck.run("ROLLBACK")


def _write(duck: Duck, client: Client) -> None:
    """Rows with consecutive numbers, in files or inlined; now and then some of the oldest go."""
    count = client.choice.choice((1, 3, 50))
    duck.run("BEGIN").run(
        f"INSERT INTO {client.title} SELECT i, 'row ' || i FROM range({client.rows}, {client.rows + count}) r(i)"
    )
    if client.choice.random() < 0.2:
        duck.run(f"UPDATE {client.title} SET name = name || '!' WHERE id % 10 = {client.choice.randrange(10)}")
    duck.run("COMMIT")
    client.rows += count


def _compact(duck: Duck, client: Client) -> None:
    table = client.choice.choice([f"s_{mode}__{'log' if mode == 'append' else 'rows'}" for mode in MODES])
    what = client.choice.choice(("merge", "rewrite", "flush", "expire"))
    if what == "merge":
        duck.run(f"CALL ducklake_merge_adjacent_files('lake', '{table}')")
    elif what == "rewrite":
        duck.run(f"CALL ducklake_rewrite_data_files('lake', '{table}', delete_threshold => 0.05)")
    elif what == "flush":
        duck.run(f"CALL ducklake_flush_inlined_data('lake', table_name => '{table}')")
    else:
        duck.run("CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL 30 SECONDS)")
    client.counts[what] += 1


@pytest.mark.slow
def test_nothing_is_lost_beside_other_writers(
    client: runnel.Client, db: psycopg.Connection, dsn: str, data_path: str
) -> None:
    choice = chance("writers")
    place = Place(dsn, data_path)
    shop = Shop(db, choice)
    shop.open()
    place.attach(db)
    for mode in MODES:
        client.create_stream_table(
            f"s_{mode}", QUERIES["wide" if mode == "merge" else "plenty"], "1s", "DIFFERENTIAL",
            sink="ducklake", ducklake_sink_mode=mode,
        )  # fmt: skip
    stopping = threading.Event()
    names = [f"other{i}" for i in range(WRITERS)]
    with place.duck() as duck:
        for name in names:
            duck.run(f"CREATE TABLE {name} (id bigint, name varchar)")
    writers = [Client(name, place, _write, stopping, random.Random(choice.random()), 0.05) for name in names]
    compactor = Client("compactor", place, _compact, stopping, random.Random(choice.random()), 0.3)
    for each in (*writers, compactor):
        each.start()
    changes = _change_for(shop, SECONDS)
    stopping.set()
    for each in (*writers, compactor):
        each.join(60)
        if each.error is not None:
            raise each.error
    _figures(db, writers, compactor, changes)
    with place.duck() as duck:
        for mode in MODES:
            name = f"s_{mode}"
            assert client.verify(name).ok, name
            assert_equal(duck_bag(db, duck, name), pg_bag(db, name), name)
            assert_counts_right(duck, f"{name}__{'log' if mode == 'append' else 'rows'}")
        for writer in writers:
            assert duck.rows(f"SELECT id FROM {writer.title} ORDER BY 1") == [(i,) for i in range(writer.rows)]
            assert writer.counts["committed"] > 3, writer.counts
    assert {s.status for s in client.status()} == {"ACTIVE"}
    failed = db.execute("SELECT error_message FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'").fetchall()
    assert not failed, failed[:3]
    place.check(db, orphans=False)


def _change_for(shop: Shop, seconds: float) -> int:
    end, changes = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        shop.change()
        changes += 1
        time.sleep(shop.chance.uniform(0, 0.4))
    return changes


def _figures(db: psycopg.Connection, writers: list[Client], compactor: Client, changes: int) -> None:
    refreshes = db.execute("SELECT status, count(*) FROM pgtrickle.pgt_refresh_history GROUP BY 1").fetchall()
    print(f"{SECONDS:.0f} s, {changes} transactions in PostgreSQL, refreshes {dict(refreshes)}")
    for each in (*writers, compactor):
        print(f"  {each.title}: {dict(each.counts)}")
