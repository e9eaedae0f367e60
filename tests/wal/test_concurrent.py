"""Writers at work while the engine refreshes, and while tables go from triggers to the WAL and back."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import runnel
from tests.wal.conftest import Captured

Check = Callable[..., None]
JOINED = "SELECT d.name, count(*) AS n, sum(s.v) AS s FROM src s JOIN dim d ON d.k = s.k GROUP BY d.name"
GUEST = """
DO $$ BEGIN CREATE ROLE wal_guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT pgtrickle_user TO wal_guest;
GRANT SELECT ON src, dim TO wal_guest;
GRANT CREATE, USAGE ON SCHEMA public TO wal_guest
"""
COPIED = "SELECT count(*) > 0 FROM pg_class WHERE relname LIKE 'pgt_decoded_%'"
WRITERS = 3


@pytest.fixture
def tables(dsn: str, db: psycopg.Connection, client: runnel.Client, captured: Captured) -> None:
    db.execute("CREATE TABLE src (id int PRIMARY KEY, k int, v int); CREATE TABLE dim (k int, name text)")
    db.execute("INSERT INTO dim SELECT i, 'n' || i % 4 FROM generate_series(0, 9) i")
    db.execute(GUEST)
    client.create_stream_table("joined", JOINED, "100ms", "DIFFERENTIAL", cdc_mode="wal")
    with contextlib.closing(runnel.connect(make_conninfo(dsn, user="wal_guest"))) as guest:
        guest.create_stream_table("copied", "SELECT id, k, v FROM src", "100ms", "DIFFERENTIAL")
    captured("wal", "src", "dim")


@contextlib.contextmanager
def writing(dsn: str) -> Iterator[list[int]]:
    """Writers in threads, each with rows of its own; the number of their transactions."""
    stop, failures, done = threading.Event(), [], [0] * WRITERS

    def write(me: int) -> None:
        chance = random.Random(me)
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                number = me
                while not stop.is_set():
                    number += WRITERS
                    with (
                        contextlib.suppress(psycopg.errors.QueryCanceled),
                        conn.transaction(force_rollback=chance.random() < 0.1),
                    ):
                        conn.execute("INSERT INTO src VALUES (%s, %s, %s)", (number, number % 10, number))
                        if chance.random() < 0.3:
                            with conn.transaction(force_rollback=chance.random() < 0.5):
                                conn.execute(
                                    "UPDATE src SET v = v + 1, k = (k + 1) %% 10 WHERE id %% %s = %s AND id > %s",
                                    (WRITERS, me, number - 100),
                                )
                        if chance.random() < 0.1:
                            conn.execute("DELETE FROM src WHERE id = %s", (number - 30 * WRITERS,))
                        if me == 0 and chance.random() < 0.05:
                            conn.execute("UPDATE dim SET name = 'n' || (%s + k) %% 4 WHERE k < 3", (number,))
                        if chance.random() < 0.02:
                            time.sleep(0.3)
                    done[me] += 1
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=write, args=(me,)) for me in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failures == []


def test_writers_and_refreshes(
    dsn: str, db: psycopg.Connection, tables: None, check: Check, only_deltas: Check
) -> None:
    with writing(dsn) as done:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            check("joined", "copied")
    check("joined", "copied")
    only_deltas("joined", "copied")
    assert min(done) > 10
    assert db.execute(COPIED).fetchone() == (True,), "some changes came after the snapshot that shows them"


def test_switching_under_writes(
    dsn: str, tables: None, client: runnel.Client, check: Check, only_deltas: Check, captured: Captured
) -> None:
    with writing(dsn) as done:
        for mode in ("trigger", "wal", "trigger", "wal"):
            client.alter_stream_table("joined", cdc_mode=mode)
            captured(mode, "src", "dim")
            check("joined", "copied")
    check("joined", "copied")
    only_deltas("joined", "copied")
    assert min(done) > 10


@pytest.mark.slow
def test_the_decoders_sessions_are_ended(
    dsn: str, db: psycopg.Connection, tables: None, check: Check, only_deltas: Check
) -> None:
    with writing(dsn):
        for _ in range(4):
            time.sleep(0.4)
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name IN ('runnel wal', 'runnel decoder')"
            )
    check("joined", "copied")
    only_deltas("joined", "copied")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))])
def test_random_histories(dsn: str, tables: None, check: Check, only_deltas: Check, seed: int) -> None:
    """Sessions take turns by chance: begin, write, save, undo, prepare, end; PostgreSQL says what must come out."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        sessions = [_Session(stack.enter_context(psycopg.connect(dsn, autocommit=True)), me) for me in range(4)]
        for step in range(120):
            chance.choice(sessions).step(chance)
            if step % 20 == 19:
                check("joined", "copied")
        for session in sessions * 2:
            session.end(chance)
        check("joined", "copied")
    only_deltas("joined", "copied")


class _Session:
    """One who writes; his rows are his own, so nobody waits for anybody."""

    def __init__(self, conn: psycopg.Connection, me: int) -> None:
        self.conn, self.me, self.number, self.open, self.prepared = conn, me, 0, False, False

    def step(self, chance: random.Random) -> None:
        """Something."""
        if self.prepared:
            self.end(chance)
        elif not self.open:
            self.conn.execute("BEGIN")
            self.open = True
        elif chance.random() < 0.25:
            self.end(chance)
        else:
            self._write(chance)

    def _write(self, chance: random.Random) -> None:
        mine = f"id % 4 = {self.me}"
        self.number += 4
        undone = chance.random() < 0.3
        if undone:
            self.conn.execute("SAVEPOINT here")
        first = 1000 * chance.randrange(5) + self.me
        self.conn.execute(
            chance.choice(
                [
                    f"INSERT INTO src VALUES ({10_000 + self.number + self.me}, {self.number % 10}, {self.number})",
                    f"INSERT INTO src SELECT i, i % 10, i FROM generate_series({first}, {first + 2000}, 4) i "
                    "ON CONFLICT (id) DO UPDATE SET v = src.v + 1",
                    f"UPDATE src SET v = v + 1 WHERE {mine} AND id < {first + 500}",
                    f"UPDATE src SET k = (k + 3) % 10 WHERE {mine}",
                    f"DELETE FROM src WHERE {mine} AND k = {chance.randrange(10)}",
                ]
            ).encode()
        )
        if undone:
            self.conn.execute("ROLLBACK TO here")

    def end(self, chance: random.Random) -> None:
        """One way or another."""
        last = chance.choice(["COMMIT", "COMMIT", "ROLLBACK"])
        name = f"'history {self.me}'"
        if self.prepared:
            self.conn.execute(f"{last} PREPARED {name}".encode())
            self.prepared = self.open = False
        elif self.open and chance.random() < 0.3:
            self.conn.execute(f"PREPARE TRANSACTION {name}".encode())
            self.prepared = True
        elif self.open:
            self.conn.execute(last.encode())
            self.open = False
