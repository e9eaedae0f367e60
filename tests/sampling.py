"""Long lists of cases: `make test` takes some of them, `make test-rest` all the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], every: int) -> list[Any]:
    """The cases for `parametrize`: the first and every so-manieth after it as they are, the others marked slow."""
    return [
        case if number % every == 0 else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)
    ]
