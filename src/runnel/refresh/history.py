"""What a refresh leaves in the catalog: a row of history if it worked, and the new frontier."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg

from runnel.catalog import store
from runnel.catalog.rows import Refresh
from runnel.model.frontier import Frontier
from runnel.refresh.maintained import Outcome


def record(conn: psycopg.Connection, outcome: Outcome, before: Frontier, initiated_by: str, started: float) -> None:
    """Write both. A scheduled refresh that found nothing to do leaves no trace."""
    rebuilt = outcome.action != "DIFFERENTIAL" and not outcome.settled
    worked = outcome.changed or rebuilt or bool(outcome.changes_read) or initiated_by != "SCHEDULER"
    worked = worked or outcome.published is not None or outcome.deferred
    moved = outcome.frontier.elsewhere != before.elsewhere
    clocked = outcome.table.plan is not None and outcome.table.plan.uses_clock
    if not (worked or moved or clocked):
        return
    at = datetime.fromisoformat(outcome.data_timestamp) if outcome.data_timestamp else None
    refresh = Refresh(
        action=outcome.action,
        initiated_by="INITIAL" if outcome.action == "INITIAL" else initiated_by,
        start_time=datetime.fromtimestamp(started, UTC),
        data_timestamp=at,
        changes_read=outcome.changes_read,
        rows_inserted=outcome.rows_inserted,
        rows_deleted=outcome.rows_deleted,
        reason=outcome.reason,
        timings=dict(outcome.timings),
        spark_jobs=0 if outcome.work is None else outcome.work.jobs,
        work=None if outcome.work is None else outcome.work.as_json(),
        rows_read=dict(outcome.rows_read),
        effort=None if outcome.effort is None else dict(outcome.effort),
    )
    table, frontier, version = outcome.table.id, outcome.frontier.as_json(), outcome.version
    if worked:
        outcome.refresh_id = store.record_and_advance(
            conn, table, refresh, outcome.refresh_id, frontier, version, rebuilt=rebuilt
        )
    else:
        store.advance(conn, table, frontier, version, at, rebuilt=rebuilt)
