"""The property, run in small batches: `make test` runs a few, the soak as many as its time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.oracle.scenario import Scenario
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

        self._shrink_until = float("inf")
        property_holds()

    def check(self, scenario: Scenario) -> None:
        """Play a scenario unless the answer is known, or the time is over."""
        text = str(scenario)
        if text in self.failed:
            raise self.failed[text]
        now = time.monotonic()
        if text in self.passed or now > self.deadline or now > self._shrink_until:
            return
        try:
            self.replay(scenario)
        except Exception as mismatch:
            self.failed[text] = mismatch
            if self._shrink_until == float("inf"):
                self.notice(f"found {mismatch}")
            self._shrink_until = min(self._shrink_until, now + self.shrink_seconds)
            raise
        self.passed.add(text)

    _shrink_until: float = float("inf")
