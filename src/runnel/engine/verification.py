"""Scheduled verification: now and then, when nothing is due, some stream table is compared with its query.

What is found is kept in `pgt_verifications` and shown by `health_check`; nothing is repaired by it. A table that
differed is looked at in every turn until it is right again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

from runnel.engine.operations import Operations
from runnel.errors import RunnelError
from runnel.refresh.unit import RefreshFailed

log = logging.getLogger(__name__)

WRONG = "SELECT pgt_id FROM pgtrickle.pgt_verifications WHERE NOT ok"
SAVE = """
INSERT INTO pgtrickle.pgt_verifications (pgt_id, ok, detail) VALUES (%s, %s, %s)
ON CONFLICT (pgt_id) DO UPDATE SET verified_at = clock_timestamp(), ok = excluded.ok, detail = excluded.detail
"""


class Verification:
    """When the next turn is; off without an interval."""

    def __init__(self, seconds: float | None, on_event: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._on_event = on_event
        self._next = time.monotonic() + (seconds or 0.0)

    def wait(self) -> float:
        """Seconds until the next turn."""
        return float("inf") if self._seconds is None else max(0.0, self._next - time.monotonic())

    def begin(self) -> None:
        """The turn has come; the next one is as far away as always."""
        self._next = time.monotonic() + (self._seconds or 0.0)

    def turn(self, operations: Operations) -> None:
        """Verify one stream table, and those that were wrong."""
        operations.registry.reload(operations.conn)
        rows = operations.registry.rows
        candidates = [i for i, row in rows.items() if row.status == "ACTIVE" and row.is_populated and row.drift is None]
        chosen = {int(row[0]) for row in operations.conn.execute(WRONG)} & set(candidates)
        if candidates:
            chosen.add(random.choice(candidates))  # noqa: S311  (any will do)
        for pgt_id in sorted(chosen):
            tables = operations.with_sources(rows[pgt_id])
            if operations.around.reservations.take(operations.job, tables):
                try:
                    self._verify(operations, pgt_id)
                finally:
                    operations.around.reservations.release(operations.job)
        self.begin()

    def _verify(self, operations: Operations, pgt_id: int) -> None:
        row = operations.registry.rows[pgt_id]
        name = f"{row.pgt_schema}.{row.pgt_name}"
        refresher = operations.refresher
        try:
            _, differing, _ = refresher.verify(pgt_id, refresher.closure(pgt_id))
        except (RefreshFailed, RunnelError) as error:
            # Whatever it was, the table's own refreshes meet it too and report it.
            log.info("%s could not be verified: %s", name, error)
            return
        detail = f"{len(differing)} or more rows differ from its query" if differing else None
        operations.conn.execute(SAVE, (pgt_id, not differing, detail))
        if differing:
            log.warning("%s is wrong: %s", name, detail)
            self._on_event(f"{name} is wrong: {detail}; `runnel verify {name}` shows them")
