"""/metrics, /healthz and /readyz."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from runnel.catalog.lost import first_line
from runnel.http.metrics import figures, lakes, process
from runnel.http.metrics.process import Requests
from runnel.http.metrics.refreshes import Refreshes

Connection = psycopg.Connection[Any]
Borrow = Callable[[], AbstractContextManager[Connection]]

HEALTH, READY = "/healthz", "/readyz"
OPEN_PATHS = frozenset({HEALTH, READY})
"""Whoever watches over processes asks these, without a token. They tell of no table."""

_KEEP_SECONDS = 1.0
"""Several who scrape at once share an answer."""

READINESS = """
SELECT pgtrickle._engine_alive(), coalesce((
    SELECT clock_timestamp() - greatest(h.seen_at, e.started_at) < interval '90 seconds'
    FROM pgtrickle.pgt_engine e LEFT JOIN pgtrickle.pgt_heartbeat h ON true), false)
"""


class Metrics:
    """What is scraped of one server."""

    def __init__(self, borrow: Borrow) -> None:
        self._borrow = borrow
        self._refreshes = Refreshes()
        self._lock = threading.Lock()
        self._kept: tuple[float, bytes] | None = None
        self.requests = Requests()

    def routes(self) -> list[Route]:
        return [Route("/metrics", self._metrics), Route(HEALTH, self._alive), Route(READY, self._ready)]

    def text(self) -> bytes:
        """All figures, in the words of Prometheus."""
        with self._lock:
            if self._kept is None or time.monotonic() - self._kept[0] > _KEEP_SECONDS:
                self._kept = time.monotonic(), self._collected()
            return self._kept[1]

    def _collected(self) -> bytes:
        began = time.perf_counter()
        found: list[Metric] = []
        with self._borrow() as conn:
            self._refreshes.look(conn)
            found += [*figures.families(conn), *lakes.families(conn)]
        found += [*self._refreshes.families(), *process.families(), *self.requests.families()]
        spent = time.perf_counter() - began
        found.append(GaugeMetricFamily("runnel_scrape_seconds", "How long these figures took to find.", value=spent))
        return bytes(generate_latest(_registry(found)))

    async def _metrics(self, _: Request) -> Response:
        try:
            return Response(await run_in_threadpool(self.text), media_type=CONTENT_TYPE_LATEST)
        except psycopg.Error as error:
            return PlainTextResponse(f"The database cannot be reached: {first_line(error)}\n", 503)

    async def _alive(self, _: Request) -> Response:
        """This process answers; whether it can work is another question."""
        return PlainTextResponse("ok\n")

    async def _ready(self, _: Request) -> Response:
        try:
            engine, beats = await run_in_threadpool(self._readiness)
        except psycopg.Error:
            return JSONResponse({"database": False, "engine": False}, 503)
        return JSONResponse({"database": True, "engine": engine and beats}, 200 if engine and beats else 503)

    def _readiness(self) -> tuple[bool, bool]:
        with self._borrow() as conn:
            row = conn.execute(READINESS).fetchone()
        assert row is not None
        return bool(row[0]), bool(row[1])


class _Found(Collector):
    """Families that were found already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def _registry(found: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found(found))
    return registry
