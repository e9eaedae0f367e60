"""Every role may notify on the engine's channels: false, malformed, and hundreds of times a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

import runnel
from tests.e2e.helpers import value
from tests.hostile.helpers import Watched, backend

CHANNELS = ("pgtrickle_wake", "pgtrickle_request", "pgtrickle_ddl")


@contextmanager
def flood(conn: psycopg.Connection, payloads: list[str]) -> Iterator[list[int]]:
    """Notify on all channels, some hundred times a second; the list holds how often."""
    sent = [0]
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            for channel in CHANNELS:
                for payload in payloads:
                    conn.execute("SELECT pg_notify(%s, %s)", (channel, payload))
                    sent[0] += 1
            stop.wait(0.005)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield sent
    stop.set()
    thread.join()


def test_malformed_payloads_are_ignored(
    watched: Watched, stranger: psycopg.Connection, db: psycopg.Connection, events: list[str]
) -> None:
    pid = backend(db, "runnel refresh")
    for payload in ("x", "", "-1", "99999999999999999999", "lake", "é" * 3000, "1; DROP TABLE good", "0"):
        for channel in CHANNELS:
            stranger.execute("SELECT pg_notify(%s, %s)", (channel, payload))
        watched.follows()
    assert backend(db, "runnel refresh") == pid, "the engine reconnected"
    assert not [e for e in events if "lost" in e or "unexpected" in e]


@pytest.mark.slow
def test_a_flood_delays_nothing(
    watched: Watched, stranger: psycopg.Connection, db: psycopg.Connection, client: runnel.Client, events: list[str]
) -> None:
    """Well-formed and false: the source has changed, says the flood."""
    source = str(value(db, "SELECT 'good'::regclass::oid"))
    pid = backend(db, "runnel refresh")
    watched.follows()
    used = os.times()
    with flood(stranger, ["x", source, "lake", ""]) as sent:
        began = time.monotonic()
        delays = []
        for _ in range(10):
            delays.append(watched.follows())
            time.sleep(0.3)
        asked = time.monotonic()
        client.refresh("fresh")
        answered = time.monotonic() - asked
        lasted = time.monotonic() - began
    per_second = sent[0] / lasted
    spent = sum(os.times()[:2]) - sum(used[:2])
    assert per_second > 200, f"no flood: {per_second:.0f} a second"
    assert sorted(delays)[5] < 2, f"refreshes were delayed: {delays}"
    assert answered < 5
    assert spent < 0.8 * lasted, f"{spent:.1f} s of processor time in {lasted:.1f} s"
    assert backend(db, "runnel refresh") == pid, "the engine reconnected"
    assert not [e for e in events if "lost" in e or "unexpected" in e]


def test_a_false_hint_refreshes_nothing(
    watched: Watched,
    stranger: psycopg.Connection,
    db: psycopg.Connection,
    engine: runnel.Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refresh costs a transaction; what strangers say may not cause one."""
    watched.follows()
    time.sleep(1.0)
    source = str(value(db, "SELECT 'good'::regclass::oid"))
    looked = engine.operations().refresher.refresh_unit
    refreshed: list[object] = []
    monkeypatch.setattr(
        engine.operations().refresher, "refresh_unit", lambda *a, **k: refreshed.append(a) or looked(*a, **k)
    )
    with flood(stranger, [source]) as sent:
        time.sleep(2)
    assert sent[0] > 200
    assert not refreshed


def test_changes_after_a_quiet_time_are_found_by_looking(watched: Watched, stranger: psycopg.Connection) -> None:
    """The gate has closed: writers notify again, and what they wrote before our next look is found by it."""
    watched.follows()
    time.sleep(5.0)
    assert watched.follows() < 3
