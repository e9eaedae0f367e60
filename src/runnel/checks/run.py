"""Run tests, after a refresh or at any other time, so that whatever they do nothing comes of it but numbers.

A test is its owner's SQL: it runs with the owner's rights (`runnel.catalog.owner`), in a savepoint that is read-only
(PostgreSQL lets nobody take that back inside of one), under a time limit, and the savepoint is rolled back whatever
happens. A test that fails is an outcome, not an error of the refresh.

After a refresh by deltas the count of each test is carried on from the delta. It is counted anew

- when the stream table was computed anew: then the delta is not all that happened, and its size is no matter;
- when it would come down to zero: a violation is only taken back when nothing of it is found in the whole table;
- for a SELECT that must be empty, always.

A test that could not be run is left to the engine (`runnel.engine.repeats`), which tries it again at its own pace.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from runnel.catalog.lost import is_lost
from runnel.catalog.masking import condition, public_message
from runnel.catalog.owner import PINNED_PATH, AsOwner
from runnel.checks.catalog import Found, Kept, Status
from runnel.checks.statements import Target, change_sql, whole_sql
from runnel.checks.tests import Test
from runnel.errors import UserError

log = logging.getLogger(__name__)

SECONDS = 10.0
"""A test may take this long in a refresh by deltas."""
WHOLE_SECONDS = 60.0
"""And this long where everything is looked at anyway."""
REPEAT_GOOD, REPEAT_BAD, REPEAT_SHARE = 60.0, 5.0, 100.0
"""What looks elsewhere is repeated after so many seconds; and takes at most one of so many."""

Sql = Callable[[Test], str | None]


class _Failed(Exception):
    """A test could not be run."""

    def __init__(self, cause: Exception, shown: str) -> None:
        super().__init__(shown)
        self.cause, self.shown = cause, shown


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the tests of one stream table, inside the caller's transaction."""

    owner: AsOwner
    target: Target
    path: str
    """The search path under which its author's names are found."""

    def after_refresh(self, kept: Sequence[Kept], delta: str) -> list[Found]:
        """What is true after a refresh whose changes are in `delta`."""
        known = {k.test: k for k in kept if k.status in ("ok", "violated")}
        changed = [test for test in known if test.kind != "empty"]
        moved = self._numbers(changed, lambda test: change_sql(self.target, test, delta), SECONDS)
        again = [test for test in known if test.kind == "empty"]
        found = []
        for test, (number, spent) in moved.items():
            if isinstance(number, _Failed):
                found.append(_found(test, number, spent))
                continue
            count = known[test].violations + number
            if count < 0 or (count == 0 and known[test].violations > 0):
                again.append(test)
            else:
                found.append(_carried_on(known[test], count))
        new = [k.test for k in kept if k.status == "pending"]
        return [*found, *self.whole(again, SECONDS), *self.whole(new)]

    def whole(self, tests: Sequence[Test], seconds: float = WHOLE_SECONDS) -> list[Found]:
        """Count anew."""
        counted = self._numbers(tests, lambda test: whole_sql(self.target, test), seconds)
        return [_found(test, number, spent) for test, (number, spent) in counted.items()]

    def refuse_impossible(self, tests: Sequence[Test]) -> None:
        """Raise what is wrong with a test that can never be run: a column, a name, a right, its syntax."""
        for test in tests:
            try:
                # A SELECT of no row of it: everything is looked up, little is computed.
                text = f"SELECT v.* FROM ({whole_sql(self.target, test)}\n) AS v LIMIT 0"
                self._select([text], self.path, SECONDS)
            except _Failed as failed:
                if isinstance(failed.cause, UserError):
                    raise failed.cause from failed
                if isinstance(failed.cause, psycopg.Error) and (failed.cause.sqlstate or "")[:2] in ("42", "0A", "3F"):
                    raise UserError(
                        f"test {test.name}: {failed.shown}", sqlstate=failed.cause.sqlstate or "42000"
                    ) from failed

    # -- details -------------------------------------------------------------------------------------------

    def _numbers(self, tests: Sequence[Test], sql: Sql, seconds: float) -> dict[Test, tuple[int | _Failed, float]]:
        """The number of each test's SELECT, or why there is none; and how long it took."""
        found: dict[Test, tuple[int | _Failed, float]] = {}
        inside = [test for test in tests if not test.looks_elsewhere]
        parts = [inside] if inside else []
        parts += [[test] for test in tests if test.looks_elsewhere]
        while parts:
            part = parts.pop(0)
            path = self.path if part[0].looks_elsewhere else PINNED_PATH
            began = time.monotonic()
            try:
                # One round trip for all that look at nothing but the stream table.
                values = self._select([text for test in part if (text := sql(test)) is not None], path, seconds)
            except (_Failed, UserError) as error:
                if len(part) > 1:
                    parts[:0] = [[test] for test in part]
                    continue
                failed = error if isinstance(error, _Failed) else _Failed(error, str(error))
                log.warning("test %s of %s could not be run: %s", part[0].name, self.target.name, failed.cause)
                found[part[0]] = failed, time.monotonic() - began
                continue
            spent = time.monotonic() - began
            found |= {test: (value, spent) for test, value in zip(part, values, strict=True)}
        return found

    def _select(self, texts: Sequence[str], path: str, seconds: float) -> list[int]:
        """Numbers, each a SELECT of one."""
        if not texts:
            return []
        conn = self.owner.conn
        owner = self.owner.under({**self.owner.settings, "search_path": path})
        text = "SELECT " + ", ".join(f"({text})" for text in texts)
        began = time.monotonic()
        try:
            with conn.transaction(force_rollback=True):
                limits = f"SET LOCAL transaction_read_only = on; SET LOCAL statement_timeout = {int(seconds * 1000)}"
                conn.execute(limits.encode())
                if owner.runner is None:
                    owner.apply_settings()
                    # Not as a simple query: nothing but one statement is taken.
                    rows = conn.execute(text.encode(), binary=True).fetchall()
                else:
                    rows = owner.rows(text, ["int8"] * len(texts))
        except psycopg.Error as error:
            if is_lost(conn):
                raise
            if owner.runner is not None:
                owner.tidy()
            if error.sqlstate == "57014":
                if time.monotonic() - began < seconds:
                    raise  # somebody stops the refresh
                raise _Failed(error, f"it takes longer than {seconds:.0f} seconds") from error
            raise _Failed(error, _shown(error)) from error
        return [int(value or 0) for value in rows[0]] if rows else []


def _carried_on(before: Kept, count: int) -> Found:
    status: Status = "violated" if count else "ok"
    if status == before.status or not before.test.looks_elsewhere:
        return Found(before.test, status, count, keeps=True)
    return Found(before.test, status, count, repeat_after=REPEAT_BAD)


def _found(test: Test, number: int | _Failed, spent: float) -> Found:
    if isinstance(number, _Failed):
        return Found(test, "error", 0, number.shown, max(REPEAT_GOOD, REPEAT_SHARE * spent))
    bad = number > 0
    least = REPEAT_BAD if bad else REPEAT_GOOD
    repeat = max(least, REPEAT_SHARE * spent) if test.looks_elsewhere else None
    return Found(test, "violated" if bad else "ok", number, None, repeat)


def _shown(error: psycopg.Error) -> str:
    """What everybody may read of it: a message may quote a row."""
    if public_message(error) is None:
        return error.diag.message_primary or str(error)
    return f"{condition(error.sqlstate)}; the engine's log has the message"
