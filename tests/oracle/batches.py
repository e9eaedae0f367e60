"""The property, run in small batches: the tests run a few, the soak as many as its time allows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.reduce import reduced
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

    def run(self, number: int, examples: int = EXAMPLES) -> None:
        """One batch; the number decides what is in it. Raises the smallest failure found."""

        @seed(number)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(scenario=scenarios(most_steps=self.most_steps))
        def property_holds(scenario: Scenario) -> None:
            self.check(scenario)

        try:
            property_holds()
        except _TimeIsOver:
            return
        except Mismatch as failure:
            raise self._smallest(failure) from None

    def check(self, scenario: Scenario) -> None:
        """Play a scenario unless the answer is known."""
        text = str(scenario)
        if text in self.failed:
            raise self.failed[text]
        if time.monotonic() > self.deadline:
            raise _TimeIsOver
        if text in self.passed:
            return
        try:
            self.replay(scenario)
        except Exception as failure:
            self.failed[text] = failure
            self.notice(f"found {failure!s}".rstrip())
            raise
        self.passed.add(text)

    def _smallest(self, failure: Mismatch) -> Mismatch:
        """The failure in its smallest form. Only the same kind counts: another one waits for its own day."""
        until, best = time.monotonic() + self.shrink_seconds, failure

        def fails(scenario: Scenario) -> bool:
            nonlocal best
            try:
                self.replay(scenario)
            except Mismatch as other:
                if kind(other) != kind(failure):
                    return False
                best = other
                return True
            except psycopg.Error:
                return False
            return False

        reduced(failure.scenario, fails, lambda: time.monotonic() > until)
        return best


def kind(failure: Mismatch) -> str:
    """What sort of failure it is: refused or failed (and why), rows that differ, not maintained by deltas."""
    words = re.sub(r"[0-9]+", "", failure.problem).split()
    return " ".join(words[:6]) if words[0] in ("failed:", "refused:") else words[0]


class _TimeIsOver(BaseException):
    """Hypothesis has no other way to end a batch early: it takes any Exception for an answer."""
