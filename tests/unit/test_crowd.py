"""Who works on what, whose turn it is, and which plans are kept: the rules without a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runnel.catalog.rows import StreamTable
from runnel.engine.agenda import Turn, turns, until_due
from runnel.engine.clocks import Clocks
from runnel.engine.job import Job
from runnel.engine.loop import Loop
from runnel.engine.plans import Plans
from runnel.engine.registry import Registry
from runnel.engine.reservations import Reservations
from runnel.errors import Cancelled
from runnel.refresh.maintained import Maintained


def a_job() -> Job:
    return Job("call", "test")


class Idle:
    """A connection that does nothing."""

    closed = True


def open_to_stop(job: Job) -> Any:
    return job.interruptible(cast("Any", Idle()))


def test_a_job_holds_all_or_nothing() -> None:
    tables, first, second = Reservations(), a_job(), a_job()
    assert tables.take(first, [1, 2])
    assert not tables.take(second, [2, 3])
    assert tables.holder(3) is None, "it would keep others from what it does not work on"
    tables.release(first)
    assert tables.take(second, [2, 3])
    assert tables.holder(2) is second


def test_calls_that_wait_go_before_schedules() -> None:
    tables, at_work, call, scheduled = Reservations(), a_job(), a_job(), a_job()
    assert tables.take(at_work, [1])
    got = threading.Event()

    def wait() -> None:
        with tables.holding(call, lambda: {1}):
            got.set()
            time.sleep(0.1)

    thread = threading.Thread(target=wait)
    thread.start()
    while not tables._wanted:
        time.sleep(0.001)
    tables.release(at_work)
    assert not tables.take(scheduled, [1])
    thread.join(5)
    assert got.is_set()
    assert tables.take(scheduled, [1])


def test_what_is_wanted_is_asked_again_when_it_is_free() -> None:
    tables, job = Reservations(), a_job()
    answers = iter([{1}, {1, 2}, {1, 2}])
    with tables.holding(job, lambda: next(answers)) as held:
        assert held == {1, 2}
        assert tables.holder(2) is job
    assert tables.holder(1) is None


def test_who_waits_can_be_stopped() -> None:
    tables, at_work, call = Reservations(), a_job(), a_job()
    assert tables.take(at_work, [1])
    threading.Timer(0.1, lambda: call.stop("enough")).start()
    with pytest.raises(Cancelled, match="enough"), open_to_stop(call), tables.holding(call, lambda: {1}):
        pytest.fail("it was never free")
    assert tables.holder(1) is at_work
    assert not tables._wanted


def test_a_reader_on_its_way_lets_its_sources_log() -> None:
    tables, refresh, create = Reservations(), a_job(), a_job()
    assert tables.take(refresh, [7])
    order: list[str] = []

    def define() -> None:
        with tables.logging(create, [7]):
            order.append("reads")

    thread = threading.Thread(target=define)
    thread.start()
    while not tables.must_log(7):
        time.sleep(0.001)
    time.sleep(0.1)
    order.append("refreshed without a log")
    tables.release(refresh)
    thread.join(5)
    assert order == ["refreshed without a log", "reads"]
    assert not tables.must_log(7)


def test_work_is_only_stopped_where_it_may_be() -> None:
    job = a_job()
    job.stop("enough")
    job.phase("cleaning up")
    with pytest.raises(Cancelled), open_to_stop(job):
        pytest.fail("it began")
    job.advance(1)
    assert job.done == 1


def test_a_plan_of_an_older_snapshot_is_not_kept() -> None:
    plans, old, new = Plans(), cast("Maintained", object()), cast("Maintained", object())
    read_at = plans.clock
    now = plans.forget([1])
    plans.keep(1, (1, ""), new, now)
    plans.keep(1, (1, ""), old, read_at)
    assert plans.find(1, (1, "")) is new
    assert plans.find(1, (2, "")) is None
    plans.retain([2])
    assert len(plans) == 0


def row(pgt_id: int, **changes: Any) -> StreamTable:
    values: dict[str, Any] = dict.fromkeys(StreamTable.__dataclass_fields__)
    values |= {
        "pgt_id": pgt_id, "pgt_schema": "public", "pgt_name": f"t{pgt_id}", "schedule": "1s", "status": "ACTIVE",
        "is_populated": True, "needs_reinit": False, "uses_clock": False, "effective_mode": "DIFFERENTIAL",
        "created_at": datetime.now(UTC), **changes,
    }  # fmt: skip
    return StreamTable(**values)


def agenda(rows: Iterable[StreamTable], reads: dict[int, set[int]] | None = None) -> tuple[Registry, Clocks]:
    registry, clocks = Registry(), Clocks()
    registry.rows = {each.pgt_id: each for each in rows}
    registry.graph = {i: frozenset((reads or {}).get(i, ())) for i in registry.rows}
    registry.relations_read = {i: {1000 + i: "TABLE"} for i in registry.rows}
    clocks.update(registry.rows)
    return registry, clocks


def order(registry: Registry, clocks: Clocks, now: float, busy: Iterable[int] = (), held: int = 0) -> list[list[int]]:
    return [list(turn.members) for turn in turns(registry, clocks, now, set(busy), lambda n: n == held)]


def test_who_has_waited_longest_goes_first() -> None:
    registry, clocks = agenda(row(i) for i in (1, 2, 3))
    now = time.time()
    for pgt_id, ago in ((1, 2.0), (2, 5.0), (3, 0.3)):
        clocks.finish(pgt_id, now - ago, None, worked=True)
    assert order(registry, clocks, now) == [[2], [1]]
    assert 0.5 < until_due(registry, clocks, now, 30) < 0.8


def test_a_busy_table_comes_after_all_that_wait() -> None:
    registry, clocks = agenda(row(i) for i in range(1, 6))
    now, begun = time.time(), []
    for turn in range(20):
        # One worker, and every refresh takes half a second: nobody may be left out.
        moment = now + turn / 2
        first = order(registry, clocks, moment)[0][0]
        begun.append(first)
        clocks.finish(first, moment, None, worked=True)
    assert {begun.count(i) for i in range(1, 6)} == {4}


def test_cron_does_not_fire_because_a_table_was_filled() -> None:
    registry, clocks = agenda([row(1, schedule="@yearly", status="INITIALIZING", is_populated=False)])
    now = time.time()
    assert order(registry, clocks, now) == [[1]], "what is empty is filled at once"
    registry.rows = {1: row(1, schedule="@yearly", last_refresh_at=datetime.now(UTC))}
    clocks.update(registry.rows)
    assert order(registry, clocks, now + 1) == []


def test_cron_does_not_fire_when_rows_are_read_anew_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, clocks = agenda([row(1, schedule="@yearly", status="INITIALIZING", is_populated=False)])
    begun: list[Turn] = []

    def notice_drift() -> None:
        # Without event triggers the catalog is looked at before each refresh: here a call has just filled the table.
        registry.rows = {1: row(1, schedule="@yearly", last_refresh_at=datetime.now(UTC))}

    desk = SimpleNamespace(
        registry=registry,
        clocks=clocks,
        stopping=threading.Event(),
        turns={},
        pool=SimpleNamespace(room=lambda _: 2, has_room=lambda _: True),
        around=SimpleNamespace(reservations=Reservations()),
        named=str,
    )
    attention = SimpleNamespace(told_of_ddl=False, notice_drift=notice_drift)
    loop = Loop(cast("Any", desk), cast("Any", attention), cast("Any", None), [])
    loop.housekept = time.time()
    monkeypatch.setattr(loop, "_begin", begun.append)
    loop._refresh_due()
    assert begun == []

    monkeypatch.undo()
    stale = Turn([1], {1: 0.0}, 0.0, heavy=False)
    assert not loop._begin(stale), "whoever was due then is not any more"
    assert desk.around.reservations.holder(1) is None


def test_nobody_begins_before_what_it_reads() -> None:
    registry, clocks = agenda([row(1), row(2), row(3)], {2: {1}})
    now = time.time()
    assert order(registry, clocks, now) == [[1], [3]]
    clocks.begin([1])
    assert order(registry, clocks, now, busy=[1]) == [[3]]
    assert sorted(order(registry, clocks, now)) == [[2], [3]], "what takes long is not waited for"


def test_a_first_build_does_not_hold_up_its_unit() -> None:
    rows = [row(1), row(2), row(3, is_populated=False, status="INITIALIZING")]
    registry, clocks = agenda(rows, {3: {1, 2}})
    registry.relations_read = {1: {9: "TABLE"}, 2: {9: "TABLE"}, 3: {}}
    now = time.time()
    assert order(registry, clocks, now) == [[1, 2, 3]]
    assert order(registry, clocks, now, held=3) == [[1, 2]]
    assert next(turns(registry, clocks, now, (), lambda _: False)).heavy
