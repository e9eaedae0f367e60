"""Percentiles, stopwatches, and the steps of refreshes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks.report import Grid
from runnel.client import Client, Refresh

STEPS = ("changes", "read", "plan", "spark", "load", "merge", "apply")
"""As the engine records them; `rest` is the request, the catalog, the commit and the way back."""

LAKE_STEPS = (*STEPS, "upload", "publish")
"""With a sink: writing Parquet files, and the lake's catalog with the map of its rows."""


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def timed_refresh(client: Client, name: str) -> tuple[float, Refresh]:
    """Milliseconds of a refresh as its caller sees it, and what the engine recorded about it."""
    spent = timed(lambda: client.refresh(name))
    return spent, client.history(name, 1)[0]


def breakdown(first: str, samples: Mapping[str, Sequence[tuple[float, Refresh]]], names: Sequence[str] = STEPS) -> Grid:
    """The steps of refreshes, a row per label."""
    rows = []
    for label, taken in samples.items():
        steps = {s: median([(r.timings or {}).get(s, 0.0) for _, r in taken]) for s in names}
        whole = median([spent for spent, _ in taken])
        rest = median([spent - sum((r.timings or {}).get(s, 0.0) for s in names) for spent, r in taken])
        rows.append([label, *(f"{v:.1f}" for v in steps.values()), f"{rest:.1f}", f"{whole:.0f}"])
    return Grid((first, *names, "rest", "whole"), rows)


def ms(value: float) -> str:
    """Milliseconds for people."""
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 20 else f"{value:.1f} ms"


def count(value: float) -> str:
    """A number of rows for people: 100 k, 5 M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value / 1000:g} k" if value >= 1000 else f"{value:g}"
