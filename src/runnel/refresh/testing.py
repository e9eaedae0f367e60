"""The tests of a stream table within its refresh, between the change of its rows and their publication."""

from __future__ import annotations

from contextlib import suppress

import psycopg

from runnel.catalog.owner import as_owner
from runnel.checks.catalog import Kept, load_tests, save_found
from runnel.checks.indexes import keep_indexes
from runnel.checks.run import Runner
from runnel.checks.statements import Target
from runnel.errors import UserError
from runnel.model import progress
from runnel.model.names import quote
from runnel.model.spans import span
from runnel.refresh.maintained import Maintained, Outcome
from runnel.refresh.table import Shared


def run_tests(shared: Shared, table: Maintained, outcome: Outcome) -> str | None:
    """Look at what a refresh has changed; why nothing of it should be shown to others, or None."""
    kept = load_tests(shared.conn, table.id)
    if outcome.changed or outcome.action in ("INITIAL", "REINITIALIZE"):
        progress.phase("test")
        with span("test"):
            runner = tester(shared.conn, table)
            if outcome.action == "DIFFERENTIAL":
                delta = table.tables(table.stages[-1]).delta
                found = runner.after_refresh(kept, delta)
            else:
                # The table may be another one now. Without its index a test is slow, not wrong.
                with suppress(UserError, psycopg.Error), shared.conn.transaction():
                    keep_indexes(shared.conn, runner.target, [k.test for k in kept])
                found = runner.whole([k.test for k in kept])
            # Who stops a refresh in the middle of a test means the refresh.
            progress.phase("test")
            save_found(shared.conn, table.id, found)
        now = {f.test: f.kept for f in found}
        kept = [now.get(k.test, k) for k in kept]
    return why_held(kept)


def why_held(kept: list[Kept]) -> str | None:
    """The tests because of which nothing is published."""
    return "; ".join(k.test.name for k in kept if k.holds_back) or None


def tester(conn: psycopg.Connection, table: Maintained) -> Runner:
    """The way to run a stream table's tests."""
    owner = as_owner(conn, table.owner, dict(table.settings))
    target = Target(table.id, table.name, table.columns)
    return Runner(owner, target, table.settings.get("search_path") or f"{quote(table.name.schema)}, public")
