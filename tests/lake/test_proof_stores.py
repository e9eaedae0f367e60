"""A store that is down, slow, broken or full: nothing half-done stays, errors can be read, and it heals by itself."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import runnel
from tests.conftest import running_engine
from tests.e2e.helpers import eventually
from tests.lake.compare import assert_equal, duck_bag, pg_bag
from tests.lake.flaky import Flaky, Trouble
from tests.lake.health import known_files, stored_files
from tests.lake.places import Place
from tests.lake.s3 import S3, SECRET_KEY
from tests.lake.shop import QUERIES, Shop
from tests.lake.sizes import FULL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("sealing_key")

CATALOG = (
    "snapshot",
    "snapshot_changes",
    "data_file",
    "delete_file",
    "file_column_stats",
    "table_stats",
    "table",
    "view",
)
STATE = "SELECT frontier::text, status, data_timestamp FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s"
FAILURES = """
SELECT error_message FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables USING (pgt_id)
WHERE pgt_name = %s AND h.status = 'FAILED' ORDER BY refresh_id
"""

SECONDS = 10.0
"""How long a file that nobody will publish may stay in a store that works."""

# A store that does not answer is given up soon, so that the test need not wait for it as long as a user would.
IMPATIENT = (("timeout", "1"), ("connect_timeout", "1"), ("max_retries", "1"), ("retry_timeout", "3"))

TROUBLES: list[tuple[Trouble, int]] = [("refuse", 0), ("hang", 0), ("cut", 0), ("full", 1)]
if FULL:
    TROUBLES += [("full", 0), ("cut", 1)]
"""And how many uploads still pass: a publication of several files may lose its store in the middle."""


@pytest.fixture
def place(dsn: str, s3: S3, flaky: Flaky, bucket: str) -> Place:
    return Place(dsn, bucket, s3, through=flaky.s3, options=IMPATIENT)


@pytest.mark.slow
def test_a_failing_store(client: runnel.Client, db: psycopg.Connection, place: Place, flaky: Flaky) -> None:
    shop = Shop(db, random.Random(1))
    shop.open()
    place.attach(db)
    client.create_stream_table("s", QUERIES["wide"], "1s", "DIFFERENTIAL", sink="ducklake")
    with place.duck() as duck:
        for number, (trouble, after) in enumerate(TROUBLES):
            before, failures = _everything(db), len(_failures(db))
            flaky.be(trouble, after=after)
            started = time.monotonic()
            with db.transaction():
                shop.insert(5)
                db.execute("DELETE FROM items WHERE id %% 7 = %s", (number,))
            eventually(lambda seen=failures: len(_failures(db)) > seen, 40, what=f"{trouble}: no failure")
            assert flaky.troubled or trouble == "refuse"
            _readable(_failures(db)[-1], trouble)
            assert _everything(db) == before, f"{trouble}, {after}"
            flaky.be("none")
            well = time.monotonic()
            eventually(lambda: _agrees(db), 45, what=f"no recovery after {trouble}")
            assert_equal(duck_bag(db, duck, "s"), pg_bag(db, "s"), f"after {trouble}")
            print(f"  {well - started:.1f} s in trouble, {time.monotonic() - well:.1f} s to recover")
            # An upload that was given up may have arrived after all, at the latest when the trouble was over.
            eventually(lambda: not _leftovers(db, place), SECONDS, what=f"leftovers of {trouble}")
        assert client.verify("s").ok
    place.check(db)


@pytest.mark.slow
def test_uploads_that_arrive_late_are_gone_seconds_later(
    client: runnel.Client, db: psycopg.Connection, place: Place, flaky: Flaky
) -> None:
    _give_up_uploads(client, db, place, flaky)
    flaky.be("none")
    eventually(lambda: _agrees(db), 45)
    # Nobody else asks the store for heads: the first looks have found nothing when the uploads arrive.
    looks = flaky.requests["HEAD"]
    eventually(lambda: flaky.requests["HEAD"] >= looks + 10, 40)
    assert not _leftovers(db, place)
    _let_arrive(db, place, flaky)
    eventually(lambda: not _leftovers(db, place), SECONDS)
    # And once more, should they come again.
    assert db.execute("SELECT count(*) > 0 FROM pgtrickle.pgt_lake_uploads").fetchone() == (True,)
    place.check(db)


@pytest.mark.slow
def test_uploads_of_a_former_engine_are_gone_seconds_after_the_start_of_the_next(
    dsn: str, spark: SparkSession, db: psycopg.Connection, place: Place, flaky: Flaky
) -> None:
    with running_engine(dsn, spark), contextlib.closing(runnel.connect(dsn)) as client:
        _give_up_uploads(client, db, place, flaky)
    flaky.be("none")
    _let_arrive(db, place, flaky)
    with running_engine(dsn, spark):
        eventually(lambda: not _leftovers(db, place), SECONDS)
        eventually(lambda: _agrees(db), 45)
    place.check(db)


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_a_refresh_by_hand_says_what_is_wrong(
    client: runnel.Client, db: psycopg.Connection, place: Place, flaky: Flaky, mode: str
) -> None:
    shop = Shop(db, random.Random(2))
    shop.open(5)
    place.attach(db)
    client.create_stream_table(
        "s", QUERIES["wide"], "@yearly", "DIFFERENTIAL", sink="ducklake", ducklake_sink_mode=mode
    )
    catalog, rows = _catalog(db), pg_bag(db, "s")
    shop.insert(3)
    flaky.be("refuse")
    with pytest.raises(runnel.RunnelError) as error:
        client.refresh("s")
    _readable(f"{error.value}", "refuse")
    assert (_catalog(db), pg_bag(db, "s")) == (catalog, rows)
    with pytest.raises(runnel.RunnelError):
        client.create_stream_table("t", QUERIES["plenty"], "@yearly", "DIFFERENTIAL", sink="ducklake")
    assert _catalog(db) == catalog
    assert db.execute("SELECT to_regclass('t')").fetchone() == (None,)
    flaky.be("slow", seconds=0.2)
    client.refresh("s")
    flaky.be("none")
    with place.duck() as duck:
        assert_equal(duck_bag(db, duck, "s"), pg_bag(db, "s"), "s")
    place.check(db)


def _give_up_uploads(client: runnel.Client, db: psycopg.Connection, place: Place, flaky: Flaky) -> None:
    """A refresh fails because its uploads get no answer; they are still on their way."""
    shop = Shop(db, random.Random(3))
    shop.open()
    place.attach(db)
    client.create_stream_table("s", QUERIES["wide"], "1s", "DIFFERENTIAL", sink="ducklake")
    flaky.be("late")
    with db.transaction():
        shop.insert(5)
        db.execute("DELETE FROM items WHERE id % 7 = 0")
    eventually(lambda: _failures(db), 40)


def _let_arrive(db: psycopg.Connection, place: Place, flaky: Flaky) -> None:
    assert flaky.held
    flaky.release()
    eventually(lambda: flaky.held == 0, 10)
    assert _leftovers(db, place)


def _leftovers(db: psycopg.Connection, place: Place) -> set[str]:
    return stored_files(place.data_path, place.s3) - known_files(db)


def _everything(db: psycopg.Connection) -> tuple[Any, ...]:
    """What must not move while the store is in trouble."""
    return _catalog(db), db.execute(STATE, ("s",)).fetchone(), pg_bag(db, "s")


def _catalog(db: psycopg.Connection) -> dict[str, int]:
    counts = {}
    for table in CATALOG:
        row = db.execute(f"SELECT count(*) FROM ducklake.ducklake_{table}".encode()).fetchone()
        assert row is not None
        counts[table] = row[0]
    return counts


def _failures(db: psycopg.Connection) -> list[str]:
    return [message for (message,) in db.execute(FAILURES, ("s",)).fetchall()]


def _agrees(db: psycopg.Connection) -> bool:
    state = db.execute(STATE, ("s",)).fetchone()
    assert state is not None
    assert state[1] == "ACTIVE", state
    return pg_bag(db, "s") == pg_bag(db, "items")


def _readable(message: str, trouble: Trouble) -> None:
    """It names the store's place and the trouble, in words; never a key."""
    print(f"  {trouble}: {message}")
    assert "s3://bucket" in message
    assert "store" in message.lower()
    assert SECRET_KEY not in message
    assert "Traceback" not in message
    assert len(message) < 600
