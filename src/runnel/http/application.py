"""What is served, put together: the guard first, then the parts of the site."""

from __future__ import annotations

import logging
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount

from runnel.http import hooks
from runnel.http.callers import Callers
from runnel.http.connections import Connections
from runnel.http.guard import App, Guard
from runnel.http.hooks import Hooks
from runnel.http.metrics.exposition import OPEN_PATHS, Metrics
from runnel.http.page.routes import Page
from runnel.iceberg.rest import ICEBERG, Rest
from runnel.model.looks import Looks

log = logging.getLogger(__name__)


def build(
    connections: Connections, callers: Callers, hosts: frozenset[str], incoming: Hooks | None, looks: Looks
) -> App:
    """The application of one server; `incoming` takes the webhooks of others in."""
    rest = Rest(connections.borrow, callers.by_token)
    metrics = Metrics(connections.borrow)
    page = Page(connections.borrow, looks)
    site = Starlette(
        routes=[
            *page.routes(),
            *metrics.routes(),
            *(hooks.routes(incoming) if incoming is not None else ()),
            Mount(ICEBERG, routes=rest.routes()),
        ],
        exception_handlers={Exception: _unexpected, 404: _nothing, 405: _no_such_verb},
    )
    guarded = Guard(
        _as_sent(site), callers, hosts,
        open_paths=rest.open_paths, open_pages=OPEN_PATHS | page.open_pages, harmless_posts=rest.harmless_posts,
        open_prefix=hooks.PREFIX if incoming is not None else None,
    )  # fmt: skip
    return metrics.requests.counting(guarded)


def _as_sent(app: App) -> App:
    """Paths as they were sent, for an application that decodes their parts itself: names may have slashes in them."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        raw = scope.get("raw_path")
        await app({**scope, "path": raw.decode("latin-1").partition("?")[0]} if raw else scope, receive, send)

    return call


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
