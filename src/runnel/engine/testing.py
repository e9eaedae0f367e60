"""Tests of stream tables outside of refreshes: set by their owners, and repeated where other tables matter."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from runnel.checks import catalog
from runnel.checks.indexes import keep_indexes
from runnel.checks.tests import read_tests
from runnel.engine.definitions import Caller
from runnel.engine.operations import Operations
from runnel.errors import RunnelError
from runnel.refresh.testing import tester, why_held

log = logging.getLogger(__name__)


def set_tests(operations: Operations, args: Mapping[str, Any], caller: Caller) -> list[dict[str, Any]]:
    """Replace the tests of a stream table and run them; what each found."""
    operations.access.owned(args["name"], caller)
    with operations.holding(args["name"], caller, lambda row: {row.pgt_id}):
        row = operations.access.owned(args["name"], caller)
        conn, registry = operations.conn, operations.registry
        tests = read_tests(args["tests"], row.pgt_schema, args.get("on_violation") or "warn")
        table = registry.maintained(conn, row.pgt_id)
        runs = row.status == "ACTIVE" and row.is_populated
        with operations.stoppable(), conn.transaction():
            runner = tester(conn, table)
            runner.refuse_impossible(tests)
            catalog.replace_tests(conn, row.pgt_id, tests)
            keep_indexes(conn, runner.target, tests)
            found = runner.whole(tests) if runs else []
            catalog.save_found(conn, row.pgt_id, found)
            kept = catalog.load_tests(conn, row.pgt_id)
        registry.reload(conn)
        # What was held back may be good now.
        operations.wake(row.pgt_id)
    return [{"test": k.test.name, "status": k.status, "violations": k.violations, "problem": k.problem} for k in kept]


def repeat_tests(pgt_id: int) -> Callable[[Operations], None]:
    """Count anew what other tables may have changed, and let a stream table go on that was held back for nothing."""

    def turn(operations: Operations) -> None:
        conn, registry = operations.conn, operations.registry
        registry.reload(conn)
        row = registry.rows.get(pgt_id)
        if row is None or row.status != "ACTIVE" or not row.is_populated:
            return
        if not operations.around.reservations.take(operations.job, {pgt_id}):
            return  # whoever works on it may well test it
        try:
            with operations.stoppable(), conn.transaction():
                table = registry.maintained(conn, pgt_id)
                kept = catalog.load_tests(conn, pgt_id)
                again = [k.test for k in kept if k.test.looks_elsewhere or k.status in ("error", "pending")]
                found = tester(conn, table).whole(again)
                catalog.save_found(conn, pgt_id, found)
        except RunnelError as error:
            log.info("the tests of %s.%s were not repeated: %s", row.pgt_schema, row.pgt_name, error)
            return
        finally:
            operations.around.reservations.release(operations.job)
        if catalog.held_since(conn, pgt_id) is not None and why_held(catalog.load_tests(conn, pgt_id)) is None:
            operations.wake(pgt_id)

    return turn
