"""What the engine hears, and what it does about it: sources that changed, definitions that did, something elsewhere."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection
from functools import partial

from runnel.engine.agenda import RUNNABLE
from runnel.engine.desk import Desk
from runnel.engine.drift import ddl_is_followed, notice
from runnel.engine.gate import WakeGate
from runnel.engine.job import Job
from runnel.engine.notices import CHANGES, DDL, OUTSIDE, REQUESTS, Ears
from runnel.engine.operations import Operations
from runnel.engine.watch import IDLE_SECONDS, POLL_SECONDS, Watch
from runnel.errors import TransientError
from runnel.schedule.dag import ancestors, descendants

DDL_SECONDS = 0.5
"""The least time between two looks at what DDL has done; anybody can say that there was some."""


class Attention:
    """Ears, and eyes for what nobody tells."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.asked = False
        """Whether somebody may wait for an answer."""
        self.ddl_told = False
        self._ddl_looked = 0.0

    def open(self) -> None:
        """Begin, on new connections: first the catalog, then the sources."""
        desk = self.desk
        desk.registry.kinds = desk.around.kinds()
        self._watch = Watch(desk.registry.kinds)
        self.ears = Ears(desk.listen, frozenset(kind.hint for kind in desk.registry.kinds if kind.hint))
        self.ears.open()

    def look_around(self) -> None:
        """A former engine may have left the gate open, and sources elsewhere may have moved."""
        self.told_of_ddl = ddl_is_followed(self.desk.control)
        self._gate = WakeGate(self.desk.control)
        self._gate.open()
        self.follow_sources()

    # -- hearing -------------------------------------------------------------------------------------------------

    def longest_sleep(self) -> float:
        """Seconds until one has to look, though nothing was heard."""
        registry, look = self.desk.registry, self._gate.wait()
        idle = POLL_SECONDS if registry.readers(*self._watch.polled) else IDLE_SECONDS
        return min(idle if look is None else min(look, idle), self._until_hints())

    def sleep(self, seconds: float) -> None:
        """Until something is heard, asked for, or due."""
        if seconds <= 0:
            return
        deaf, wake = self.ears.deaf_seconds(), self.desk.wake_read
        heard = [wake] if deaf else [self.desk.listen.fileno(), wake]
        readable, _, _ = select.select(heard, [], [], min(seconds, deaf) if deaf else seconds)
        if wake in readable:
            os.read(wake, 4096)

    def hear(self) -> None:
        """Take in hints: that sources changed, that definitions did, that something elsewhere moved."""
        registry, clocks = self.desk.registry, self.desk.clocks
        silent = self._gate.wait() is not None
        hints = self.ears.hear()
        self.asked |= REQUESTS in hints
        self.ddl_told |= DDL in hints
        if OUTSIDE in hints:
            self._watch.tell()
        if hints & {CHANGES, OUTSIDE}:
            self._gate.hint()
        sources = registry.relations(registry.rows) & registry.tracked
        told = {oid for kind in registry.kinds for oid in kind.told()}
        for source in {*self._gate.look(sources), *told}:
            self.ears.not_in_vain()
            clocks.mark_dirty(registry.readers(source))
        if self.ddl_told and time.time() - self._ddl_looked >= DDL_SECONDS:
            self.follow_ddl()
        if self._watch.is_due(awake=silent):
            self.follow_sources()

    def _until_hints(self) -> float:
        """Seconds until a hint is followed that came too soon after the last one of its kind."""
        now = time.time()
        ddl = self._ddl_looked + DDL_SECONDS - now if self.ddl_told else IDLE_SECONDS
        return max(0.0, min(ddl, self._watch.wait()))

    # -- sources and definitions -----------------------------------------------------------------------------------

    def follow_sources(self) -> None:
        """Look at sources elsewhere: whoever reads one that moved may have changes waiting."""
        desk = self.desk
        with desk.house.step("sources elsewhere", *desk.connections):
            self._watch.follow(desk.control)
        moved = self._watch.moved(desk.control)
        if moved:
            self.ears.not_in_vain()
            self._gate.open()
        desk.clocks.mark_dirty(desk.registry.readers(*moved))

    def follow_ddl(self) -> None:
        """Bring definitions in step with what DDL did to their sources."""
        desk = self.desk
        self.ddl_told, self._ddl_looked = False, time.time()
        with desk.house.step("sources", *desk.connections):
            desk.around.defining.release_sources(desk.control)
        before = desk.registry.rows.keys()
        desk.around.defining.changed()
        desk.reload()
        if before - desk.registry.rows.keys():
            desk.pool.tidy(None)
            self.tidy_sinks()
        self._follow_drift()

    def notice_drift(self) -> None:
        """Look for what DDL did, and let workers bring definitions in step with it."""
        desk = self.desk
        with desk.house.step("drift", *desk.connections):
            notice(desk.control)
        desk.reload()
        self._follow_drift()

    def _follow_drift(self) -> None:
        """Let workers compile anew what rests on something that changed, upstream first."""
        desk = self.desk
        rows, graph = desk.registry.rows, desk.registry.graph
        drifted = {i for i, row in rows.items() if row.drift is not None and row.status in RUNNABLE}
        for pgt_id in drifted:
            if not drifted.isdisjoint(ancestors(graph, pgt_id)) or not desk.pool.has_room("heavy"):
                continue
            tables = {pgt_id, *descendants(graph, pgt_id)}
            job = Job("heavy", "redefine", desk.named([pgt_id]))
            if desk.around.reservations.take(job, tables):
                desk.start(job, partial(_follow, tables=tables), [pgt_id])

    def tidy_sinks(self) -> None:
        """Let a worker do what sinks have left for a quiet moment."""
        pool = self.desk.pool
        if pool.has_room("heavy") and not any(job.what == "tidy sinks" for _, job in pool.running()):
            self.desk.start(Job("heavy", "tidy sinks"), _tidy_sinks)


def _tidy_sinks(operations: Operations) -> None:
    """Let the sinks of a worker do what was left for a quiet moment; tables that somebody works on wait."""
    reservations = operations.around.reservations

    def mine(pgt_id: int) -> None:
        if pgt_id not in operations.job.held and not reservations.take(operations.job, [pgt_id]):
            raise TransientError("its stream table is being worked on")

    operations.refresher.tidy_sinks(mine)


def _follow(operations: Operations, tables: Collection[int]) -> None:
    operations.registry.reload(operations.conn)
    operations.redefiner.follow(tables)
    operations.around.defining.changed()
