"""The addresses of the page: its files, what it reads (GET), and what its buttons do (POST)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runnel.errors import RunnelError
from runnel.http.callers import Caller
from runnel.http.page import acts, graph, overview, provenance, table, watch
from runnel.http.page.caller import Connection, only, speaking_for
from runnel.http.page.files import file, files
from runnel.model.looks import Looks

Borrow = Callable[[], AbstractContextManager[Connection]]
Answer = Callable[[Connection, Request], Any]
Deed = Callable[[Connection, Mapping[str, Any]], Any]

_KEEP_SECONDS = 0.8
"""All who watch with the same rights share what was read."""
_KEPT = 200


class Page:
    """The page of one server."""

    def __init__(self, borrow: Borrow, looks: Looks) -> None:
        self._borrow = borrow
        self._looks = looks
        self._kept: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._lock = threading.Lock()
        self._captured = graph.Captured()

    @property
    def open_pages(self) -> frozenset[str]:
        return frozenset(files())

    def routes(self) -> list[Route]:
        reads: dict[str, Answer] = {
            "overview": lambda conn, _: overview.overview(conn),
            "graph": lambda conn, _: graph.graph(conn, self._captured),
            "table": lambda conn, request: table.table(conn, _asked(request, "name")),
            "history": _history,
            "explain": lambda conn, request: acts.explain(conn, _asked(request, "name")),
            "watch": lambda conn, _: watch.watched(conn),
            "snapshots": lambda conn, _: provenance.newest(conn),
            "lineage": lambda conn, request: provenance.lineage(
                conn, _asked(request, "lake"), _number(request, "snapshot")
            ),
        }
        deeds: dict[str, Deed] = {"act": acts.act, "validate": acts.validate, "create": acts.create}
        return [
            *(Route(path, file, methods=["GET"]) for path in files()),
            Route("/api/me", self._me, methods=["GET"]),
            Route("/api/lakes", self._lakes, methods=["GET"]),
            Route("/api/delta", self._delta, methods=["GET"]),
            *(Route(f"/api/{name}", self._reading(name, answer), methods=["GET"]) for name, answer in reads.items()),
            *(Route(f"/api/{name}", self._doing(deed), methods=["POST"]) for name, deed in deeds.items()),
        ]

    async def _me(self, request: Request) -> Response:
        """Who asks, and whether buttons will work: only who shows a token does anything."""
        caller = _caller(request)
        token = request.headers.get("authorization", "").lower().startswith("bearer ")
        return _json({"role": caller.role, "may_act": token})

    async def _lakes(self, _: Request) -> Response:
        return await self._shared(("", "lakes"), overview.lakes)

    async def _delta(self, request: Request) -> Response:
        caller, name = _caller(request), _asked(request, "name")
        return await self._shared(
            (caller.role, str(request.url)), lambda conn: table.delta(conn, name, caller, self._looks)
        )

    def _reading(self, name: str, answer: Answer) -> Callable[[Request], Any]:
        async def read(request: Request) -> Response:
            caller = _caller(request)

            def ask(conn: Connection) -> Any:
                with speaking_for(conn, caller):
                    return answer(conn, request)

            return await self._shared((caller.role, f"{name}?{request.url.query}"), ask)

        return read

    async def _shared(self, key: tuple[str, str], ask: Callable[[Connection], Any]) -> Response:
        try:
            found = await run_in_threadpool(self._known, key, ask)
        except (psycopg.Error, RunnelError) as error:
            return _refused(error)
        if found == b"null":
            return _json({"error": "There is no such thing."}, 404)
        return Response(found, media_type="application/json", headers={"Cache-Control": "no-store"})

    def _known(self, key: tuple[str, str], ask: Callable[[Connection], Any]) -> bytes:
        with self._lock:
            moment, found = self._kept.get(key, (0.0, b""))
        if time.monotonic() - moment < _KEEP_SECONDS:
            return found
        with self._borrow() as conn:
            found = _encoded(ask(conn))
        with self._lock:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = time.monotonic(), found
        return found

    def _doing(self, deed: Deed) -> Callable[[Request], Any]:
        async def do(request: Request) -> Response:
            caller = _caller(request)
            try:
                wish = json.loads(await request.body())
            except ValueError:
                wish = None
            if not isinstance(wish, dict):
                return _json({"error": "A JSON object is expected."}, 400)

            def call() -> Any:
                with self._borrow() as conn, speaking_for(conn, caller, acting=True):
                    return deed(conn, wish)

            try:
                answer = await run_in_threadpool(call)
            except (psycopg.Error, RunnelError) as error:
                return _refused(error)
            with self._lock:
                self._kept.clear()
            return _json(answer)

        return do


def _history(conn: Connection, request: Request) -> Any:
    found = only(conn, table.TABLE, {"name": _asked(request, "name")})
    before = _number(request, "before")
    return None if found is None else table.history(conn, found["pgt_id"], before, table.MOST_REFRESHES)


def _caller(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def _asked(request: Request, key: str) -> str:
    return request.query_params.get(key, "")


def _number(request: Request, key: str) -> int:
    text = request.query_params.get(key, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _refused(error: psycopg.Error | RunnelError) -> Response:
    """What went wrong, as PostgreSQL or the engine says it."""
    if isinstance(error, RunnelError):
        return _json({"error": error.message, "detail": error.detail, "hint": error.hint}, 400)
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return _json({"error": "The database cannot be reached."}, 503)
    told = error.diag
    code = 403 if isinstance(error, psycopg.errors.InsufficientPrivilege) else 400
    return _json(
        {"error": told.message_primary or str(error), "detail": told.message_detail, "hint": told.message_hint}, code
    )


def _encoded(answer: Any) -> bytes:
    return json.dumps(answer, default=overview.numbers, ensure_ascii=False, separators=(",", ":")).encode()


def _json(answer: Any, code: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(_encoded(answer), code, media_type="application/json", headers=headers)
