"""The loop of an engine, one turn at a time: what has ended, what is asked for, what is due, what was heard.

Nothing here takes long. What does is handed to workers (`runnel.engine.workers`): refreshes, and what callers ask for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from runnel.catalog import requests as calls
from runnel.catalog import store
from runnel.catalog.lost import first_line
from runnel.checks.catalog import next_repeat
from runnel.engine.agenda import Turn, is_runnable, turns, until_due
from runnel.engine.attention import Attention
from runnel.engine.desk import Desk
from runnel.engine.drift import record_missing
from runnel.engine.housekeeping import repair_capture
from runnel.engine.job import Job
from runnel.engine.operations import Operations
from runnel.engine.refreshes import Drifted, describe_failure
from runnel.engine.requests import answer
from runnel.engine.showing import Showing
from runnel.engine.testing import repeat_tests
from runnel.engine.together import Together, joined
from runnel.engine.verification import Verification
from runnel.engine.watch import IDLE_SECONDS
from runnel.engine.workers import CALLS, LONG_SECONDS, Done, known_rows
from runnel.errors import Cancelled, TransientError
from runnel.refresh.maintained import Outcome
from runnel.refresh.unit import RefreshFailed
from runnel.sources.registry import Services

log = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
LATE_SECONDS = 3.0
"""health_check warns of a table that waits for longer."""
HOUSEKEEPING_SECONDS = 5.0
TAKE_SECONDS = 0.25
"""Requests are looked for this often, whether or not somebody has notified."""
REPEATING = "test"
STOP_SECONDS = 0.05
"""Between two attempts to stop a job that was asked to stop."""


class WorkerLost(TransientError):
    """A worker has lost its connection: all are made anew."""


class Loop:
    """What the engine's own thread does, again and again."""

    def __init__(self, desk: Desk, attention: Attention, verification: Verification, services: Services) -> None:
        self.desk, self.attention = desk, attention
        self.housekept = 0.0
        self._verification, self._services = verification, services
        self._showing = Showing()
        self._together = Together()
        self._taken = 0.0
        self._beaten = 0.0
        self._told_late = False
        self._next_test: float | None = None
        """When a test is to be repeated; None: look."""

    def turn(self) -> None:
        """Once round."""
        desk = self.desk
        self._collect()
        self._serve_requests()
        with desk.house.step("progress", *desk.connections):
            self._showing.show(desk.control, desk.registry, desk.sessions, desk.pool.running())
        wait = min(self._refresh_due(), self._verify_due(), self._until_tests())
        longest = self.attention.longest_sleep()
        if not desk.stopping.is_set():
            if desk.pool.interrupt():
                longest = min(longest, STOP_SECONDS)
            elif desk.pool.running() or self._showing.shows:
                longest = min(longest, TAKE_SECONDS)
            self.attention.sleep(min(wait, longest))
        self.attention.hear()

    def _beat(self) -> None:
        """Let health_check see that the loop comes round. A warning is taken back as soon as it is over."""
        beats = time.time() - self._beaten >= BEAT_SECONDS
        if not beats and not self._told_late:
            return
        pace = self._pace()
        late = pace["late"] > LATE_SECONDS
        if beats or not late:
            self._beaten, self._told_late = time.time(), late
            store.beat(self.desk.control, self.desk.sessions.prepared.kept, pace)

    def _pace(self) -> dict[str, float]:
        """Whether everybody's turn comes in time."""
        registry, clocks, now = self.desk.registry, self.desk.clocks, time.time()
        busy = {n for turn, _ in self.desk.turns.values() for n in turn.members}
        nodes = [n for n in registry.rows if n not in busy and is_runnable(registry, clocks, n)]
        # One that is being filled for the first time waits for nothing but its build.
        filled = [n for n in nodes if registry.rows[n].is_populated]
        late = [waited for n in filled if (waited := clocks.late(n, registry.graph, now)) is not None]
        return {
            "running": len(busy),
            "waiting": len(late),
            "late": round(max(late, default=0.0), 3),
            "jobs": self.desk.sessions.jobs_running(),
        }

    # -- what workers have done ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Take note of what has ended."""
        desk = self.desk
        touched: set[int] = set()
        for done in desk.pool.finished():
            self._next_test = None
            if done.lost:
                raise WorkerLost(first_line(done.error) if done.error else "a worker's connection is gone")
            if done.job.number in desk.turns:
                touched |= self._finish_turn(done)
            elif isinstance(done.error, Cancelled):
                log.info("%s %s: %s", done.job.what, done.job.subject, done.error)
            elif done.error is not None:
                log.error("%s failed: %s", done.job.what, describe_failure(done.error), exc_info=done.error)
        reopened = []
        while not desk.reopened.empty():
            reopened.append(desk.reopened.get())
        registry = desk.registry
        stale = bool(reopened) or desk.around.defining.changes != registry.changes
        if stale or (touched and not registry.reload_only(desk.control, touched & registry.rows.keys())):
            desk.reload()
        for pgt_id in reopened:
            desk.clocks.forget(pgt_id)
        while not desk.refreshed.empty():
            self._tell_readers(desk.refreshed.get())

    def _tell_readers(self, outcomes: Sequence[Outcome]) -> None:
        """Whoever reads what a refresh has changed, by schedule or by hand, may have changes waiting."""
        changed, refreshed = {o.table.id for o in outcomes if o.changed}, {o.table.id for o in outcomes}
        graph = self.desk.registry.graph
        self.desk.clocks.mark_dirty(n for n, reads in graph.items() if reads & changed and n not in refreshed)

    def _finish_turn(self, done: Done) -> set[int]:
        """A refresh by schedule has ended: when its tables are due next."""
        clocks = self.desk.clocks
        turn, began = self.desk.turns.pop(done.job.number)
        cause = done.error.cause if isinstance(done.error, RefreshFailed) else done.error
        if isinstance(cause, Cancelled):
            # It had not begun, or was over; or one of them is being dropped, and the others go on without it.
            self._together.alone(turn.members)
            self.attention.ddl_told |= isinstance(cause, Drifted)
            clocks.mark_dirty(turn.members)
            return set(turn.members)
        if done.error is not None:
            # Not even the failure could be recorded.
            log.error("stream tables %s are left alone for a while", list(turn.members), exc_info=done.error)
            clocks.hold(turn.members)
            clocks.mark_dirty(turn.members)
            return set(turn.members)
        outcomes: Sequence[Outcome] = done.result
        refreshed = {o.table.id for o in outcomes}
        self._together.took(refreshed, time.time() - began)
        if turn.together and not refreshed.issuperset(turn.members):
            # Too large to be done with others, or all of them were undone for the sake of one.
            left = [n for n in turn.members if n not in refreshed]
            self._together.alone(left)
            clocks.mark_dirty(left)
            turn = replace(turn, members=[n for n in turn.members if n in refreshed])
        for node in turn.members:
            worked = any(o.table.id == node and (o.changed or o.changes_read) for o in outcomes)
            clocks.finish(node, began, turn.planned.get(node), worked=worked or not outcomes)
        return set(turn.planned)

    # -- requests ----------------------------------------------------------------------------------------------

    def _serve_requests(self) -> None:
        desk, attention = self.desk, self.attention
        self._beat()
        if not attention.asked and time.time() - self._taken < TAKE_SECONDS:
            return
        attention.asked, self._taken = False, time.time()
        # Whoever wants to stop something is heard in any case.
        requests = calls.take_requests(desk.control, CALLS, stopping=not desk.pool.has_room("call"))
        if requests:
            attention.ears.not_in_vain()
            attention.asked = True
            if attention.ddl_told:
                attention.follow_ddl()
            if any(request.kind not in calls.NAME_NO_SOURCE for request in requests):
                # A query may name a table elsewhere that was made a moment ago.
                attention.follow_sources()
        for request in requests:
            job = Job("call", request.kind, str(request.args.get("name") or ""), request.request_id, request.caller_pid)
            job.role = request.role
            if not desk.start(job, partial(answer, services=self._services, request=request)):
                busy = TransientError(
                    "the engine has no session to spare", hint="Try again in a moment.", sqlstate="53300"
                )
                calls.finish_request(desk.control, request.request_id, error=busy)
        self._stop_abandoned()

    def _stop_abandoned(self) -> None:
        """Nobody waits for the answer any more: the caller was cancelled, or has gone."""
        waiting = {job.request_id: job for _, job in self.desk.pool.running() if job.request_id is not None}
        for request_id in calls.abandoned(self.desk.control, list(waiting)):
            waiting[request_id].stop("canceling statement due to user request")

    # -- refreshes -----------------------------------------------------------------------------------------------

    def _refresh_due(self) -> float:
        """Begin to refresh what is due, as far as there are hands; seconds until something will be."""
        desk = self.desk
        self._keep_house()
        desk.clocks.update(desk.registry.rows)
        if desk.stopping.is_set():
            return 0.0
        if not self.attention.told_of_ddl and any(True for _ in self._due(time.time())):
            self.attention.notice_drift()
            # Rows were read anew: a table that was empty a moment ago may have been filled by a call.
            desk.clocks.update(desk.registry.rows)
        now = time.time()
        hands, holder = desk.pool.room("refresh"), desk.around.reservations.holder
        for party in self._together.parties(
            list(self._due(now)), desk.registry, hands, lambda n: holder(n) is not None
        ):
            # Somebody may wait for one of them; the one that is latest need not.
            if not self._begin(joined(party)) and len(party) > 1:
                self._begin(party[0])
        return until_due(desk.registry, desk.clocks, now, IDLE_SECONDS)

    def _due(self, now: float) -> Iterator[Turn]:
        desk = self.desk
        holder = desk.around.reservations.holder
        # Whoever reads a table that is being refreshed waits for it, unless that takes long.
        brief = {n for turn, began in desk.turns.values() for n in turn.members if now - began < LONG_SECONDS}
        return turns(desk.registry, desk.clocks, now, brief, lambda n: holder(n) is not None)

    def _begin(self, turn: Turn) -> bool:
        """Let a worker refresh a unit, if there is one to spare and nobody else is at these tables; whether it does."""
        desk = self.desk
        job = Job("heavy" if turn.heavy else "refresh", "refresh", desk.named(turn.members))
        if not desk.pool.has_room(job.kind) or not desk.around.reservations.take(job, turn.members):
            return False
        if self._was_filled(turn.members) or not self._is_due(turn):
            # A call that ended a moment ago has done it: what it leaves to do is seen at the next turn.
            desk.around.reservations.release(job)
            return False
        broken = {n: error for n in turn.members if (error := desk.clocks.broken(n)) is not None}
        desk.clocks.begin(turn.members)
        # Periods count from here: what was looked at before may have taken its time.
        desk.turns[job.number] = turn, time.time()
        rows = desk.registry.rows

        def refresh(operations: Operations) -> list[Outcome]:
            known_rows(rows, operations, turn.members)
            for node, error in broken.items():
                operations.refresher.fail(node, error)
            members = [n for n in turn.members if n not in broken and n in operations.registry.rows]
            if turn.together:
                return operations.refresher.refresh_together(members)
            return operations.refresher.refresh_unit(members, "SCHEDULER")

        if not desk.start(job, refresh, turn.members):
            del desk.turns[job.number]
            desk.clocks.mark_dirty(turn.members)
            desk.clocks.hold(turn.members)
        return True

    def _was_filled(self, tables: Sequence[int]) -> bool:
        """Whether one of these is not as empty any more as the loop took it for."""
        registry = self.desk.registry
        empty = [n for n in tables if not registry.rows[n].is_populated]
        if not empty:
            return False
        if not registry.reload_only(self.desk.control, empty):
            self.desk.reload()
        self.desk.clocks.update(registry.rows)
        return any(n not in registry.rows or registry.rows[n].is_populated for n in empty)

    def _is_due(self, turn: Turn) -> bool:
        """Whether a unit is still due, now that the rows may have been read once more."""
        desk, now = self.desk, time.time()
        known = [n for n in turn.members if n in desk.clocks]
        return any(at is not None and at <= now for at in (desk.clocks.due(n, desk.registry.graph) for n in known))

    def _verify_due(self) -> float:
        """Let a worker verify, if it is time and there is nothing better to do."""
        wait = self._verification.wait()
        if wait <= 0 and not self.desk.turns and self.desk.pool.has_room("heavy"):
            self._verification.begin()
            self.desk.start(Job("heavy", "verify"), self._verification.turn)
            return self._verification.wait()
        return wait if wait > 0 else IDLE_SECONDS

    def _repeat_tests(self) -> None:
        """Let a worker repeat the tests of a stream table that look at other tables, if it is time."""
        desk, rows = self.desk, self.desk.registry.rows
        if not any(row.tested for row in rows.values()):
            self._next_test = float("inf")
        elif not any(job.what == REPEATING for _, job in desk.pool.running()):
            wait, pgt_id = next_repeat(desk.control)
            self._next_test = time.time() + wait
            if wait <= 0 and pgt_id in rows and desk.pool.has_room("heavy"):
                desk.start(Job("heavy", REPEATING, desk.named([pgt_id])), repeat_tests(pgt_id))

    def _until_tests(self) -> float:
        """Seconds until a test is to be repeated; it is looked for when house is kept."""
        due = self.housekept + HOUSEKEEPING_SECONDS
        return max(0.0, max(due, self._next_test or 0.0) - time.time())

    # -- housekeeping --------------------------------------------------------------------------------------------

    def keep_house_soon(self) -> None:
        """At the next turn, which comes now; from any thread."""
        self.housekept = 0.0
        self.desk.wake()

    def _keep_house(self) -> None:
        """Now and then: prune what every consumer has passed, and look for sources that drifted."""
        if time.time() - self.housekept < HOUSEKEEPING_SECONDS:
            return
        self.housekept = time.time()
        desk, step = self.desk, self.desk.house.step
        control, registry = desk.control, desk.registry
        with step("pruning", *desk.connections):
            desk.house.prune(control, registry, desk.around)
        with step("services", *desk.connections):
            for service in self._services:
                service.look(control)
        with step("capture", *desk.connections):
            for source in repair_capture(control, registry):
                desk.clocks.mark_dirty(registry.readers(source))
        desk.sessions.prepared.retain(registry.rows.keys())
        with step("definitions", *desk.connections):
            record_missing(control, registry.rows, registry.kinds)
            self.attention.notice_drift()
        with step("tests", *desk.connections):
            self._repeat_tests()
        self.attention.tidy_sinks()
        desk.pool.rest(registry.rows)
