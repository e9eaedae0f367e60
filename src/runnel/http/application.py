"""What is served, put together: the guard first, then the parts of the site."""

from __future__ import annotations

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from runnel.http.callers import Callers
from runnel.http.connections import Connections
from runnel.http.guard import App, Guard
from runnel.iceberg.rest import ICEBERG, Rest

log = logging.getLogger(__name__)


def build(connections: Connections, callers: Callers, hosts: frozenset[str]) -> App:
    """The application of one server."""
    rest = Rest(connections.borrow, callers.by_token)
    site = Starlette(
        routes=[Route("/", _front), Mount(ICEBERG, routes=rest.routes())],
        exception_handlers={Exception: _unexpected, 404: _nothing, 405: _no_such_verb},
    )
    return Guard(_as_sent(site), callers, hosts, open_paths=rest.open_paths, harmless_posts=rest.harmless_posts)


def _as_sent(app: App) -> App:
    """Paths as they were sent, for an application that decodes their parts itself: names may have slashes in them."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        raw = scope.get("raw_path")
        await app({**scope, "path": raw.decode("latin-1").partition("?")[0]} if raw else scope, receive, send)

    return call


def _front(request: Request) -> Response:
    return PlainTextResponse(f"Runnel. Lakes as Iceberg (REST catalog): {request.base_url}{ICEBERG.strip('/')}\n")


def _nothing(request: Request, _: Exception) -> Response:
    body = {"error": {"message": f"There is no {request.url.path} here.", "type": "NotFoundException", "code": 404}}
    return JSONResponse(body, 404)


def _no_such_verb(request: Request, _: Exception) -> Response:
    message = f"{request.method} is not supported for {request.url.path}."
    return JSONResponse({"error": {"message": message, "type": "UnsupportedOperationException", "code": 405}}, 405)


def _unexpected(request: Request, error: Exception) -> Response:
    # The path may name a table; headers, which hold tokens, are not told.
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    body = {"error": {"message": "Something unexpected; the engine's log has more.", "type": "InternalServerError"}}
    body["error"]["code"] = 500  # type: ignore[assignment]
    return JSONResponse(body, 500)
