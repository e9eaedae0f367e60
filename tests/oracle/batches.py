"""The property, run in small batches: `make test` runs a few, the soak as many as its time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.scenario import Mismatch, Scenario
from tests.oracle.strategies import scenarios

EXAMPLES = 10
"""Per batch. Beyond ten, hypothesis mostly varies what it has already tried, and a scenario costs seconds."""


@dataclass
class Batches:
    """Runs batches, remembering what passed and what failed so that no scenario is played twice."""

    replay: Callable[[Scenario], None]
    most_steps: int
    shrink_seconds: float = 60.0
    deadline: float = float("inf")
    """When to stop trying new scenarios, by time.monotonic()."""
    notice: Callable[[str], None] = lambda _: None
    """Told of every failure before it is shrunk."""
    passed: set[str] = field(default_factory=set)
    failed: dict[str, Exception] = field(default_factory=dict)

    def run(self, number: int) -> None:
        """One batch; the number decides what is in it. Raises the smallest failure found."""

        @seed(number)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        @given(scenario=scenarios(most_steps=self.most_steps))
        def property_holds(scenario: Scenario) -> None:
            self.check(scenario)

        self._found = None
        try:
            property_holds()
        except _TimeIsOver:
            if self._found is not None:
                raise self._found.failure from None

    def check(self, scenario: Scenario) -> None:
        """Play a scenario unless the answer is known."""
        text = str(scenario)
        if text in self.failed:
            raise self.failed[text]
        now = time.monotonic()
        if now > self.deadline or (self._found is not None and now > self._found.shrink_until):
            raise _TimeIsOver
        if text in self.passed:
            return
        try:
            self.replay(scenario)
        except Exception as failure:
            # While shrinking, only the same kind of failure counts: another one waits for its own day.
            if self._found is None or kind(failure) == kind(self._found.failure):
                self.failed[text] = failure
                self._keep(text, failure, now)
                raise
        self.passed.add(text)

    def _keep(self, text: str, failure: Exception, now: float) -> None:
        if self._found is None:
            self.notice(f"found {failure!s}".rstrip())
            self._found = _Found(text, failure, now + self.shrink_seconds)
        elif len(text) < len(self._found.text):
            self._found = replace(self._found, text=text, failure=failure)

    _found: _Found | None = None


def kind(failure: Exception) -> str:
    """What sort of failure it is: refused, failed, rows that differ, not maintained by deltas."""
    return failure.problem.split()[0] if isinstance(failure, Mismatch) else type(failure).__name__


@dataclass(frozen=True)
class _Found:
    text: str
    failure: Exception
    shrink_until: float


class _TimeIsOver(BaseException):
    """Hypothesis has no other way to end a batch early: it takes any Exception for an answer."""
