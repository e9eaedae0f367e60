"""The processes of a stack: the engine, Spark's virtual machine, and Spark's Python workers. HTTP itself."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from runnel.http.guard import App

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_PARTS = {"metrics": "metrics", "healthz": "health", "readyz": "health", "iceberg": "iceberg", "api": "api"}


def families() -> Iterator[Metric]:
    """Memory and processor time, by what a process is."""
    memory: Counter[str] = Counter()
    spent: defaultdict[str, float] = defaultdict(float)
    this = psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            name = "engine" if process.pid == this.pid else _kind(process.name())
            if name is None:
                continue
            memory[name] += process.memory_info().rss
            times = process.cpu_times()
            spent[name] += times.user + times.system
        except psutil.Error:
            continue  # it has just ended
    resident = GaugeMetricFamily("runnel_process_resident_bytes", "Memory in use.", labels=["process"])
    seconds = CounterMetricFamily("runnel_process_cpu_seconds", "Processor time used.", labels=["process"])
    for name in memory:
        resident.add_metric([name], memory[name])
        seconds.add_metric([name], spent[name])
    yield from (resident, seconds)


def _kind(name: str) -> str | None:
    """What a child of the engine's process is; PostgreSQL's processes have figures of their own."""
    if name == "java":
        return "spark"
    return "spark workers" if name.startswith("python") else None


class Requests:
    """Counts what is asked of the site, by its parts and never by what was asked for."""

    def __init__(self) -> None:
        self._done: Counter[tuple[str, str, str]] = Counter()
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    def counting(self, app: App) -> App:
        """The same application, counted."""

        async def call(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = "500"

            async def watched(message: Any) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            began = time.perf_counter()
            try:
                await app(scope, receive, watched)
            finally:
                part = _part(scope["path"])
                method = scope["method"] if scope["method"] in _METHODS else "OTHER"
                self._done[part, method, f"{status[0]}xx"] += 1
                self._seconds[part, method] += time.perf_counter() - began

        return call

    def families(self) -> Iterator[Metric]:
        done = CounterMetricFamily("runnel_http_requests", "Requests answered.", labels=["part", "method", "status"])
        for key, count in list(self._done.items()):
            done.add_metric(key, count)
        seconds = CounterMetricFamily(
            "runnel_http_request_seconds", "Time of these requests.", labels=["part", "method"]
        )
        for pair, spent in list(self._seconds.items()):
            seconds.add_metric(pair, spent)
        yield from (done, seconds)


def _part(path: str) -> str:
    """The part of the site: few, whatever is asked for.

    >>> _part("/iceberg/v1/lake/namespaces"), _part("/metrics"), _part("/")
    ('iceberg', 'metrics', 'page')
    """
    return _PARTS.get(path.strip("/").partition("/")[0], "page")
