"""What stands before every request: is it meant for this server, is it from another web page, who asks?

A page in somebody's browser can send requests to any server that the browser reaches, this machine's own included, and
by a name of its own that it lets point here. So the Host must be one of ours, and an Origin, if there is one, must be
this server. Tokens are headers, which no other page can add.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from runnel.catalog.lost import first_line
from runnel.http.callers import Caller, Callers

log = logging.getLogger(__name__)

App = Callable[[Any, Any, Any], Awaitable[None]]

READING = frozenset({"GET", "HEAD"})


class Guard:
    """An ASGI application before another one."""

    def __init__(
        self,
        app: App,
        callers: Callers,
        hosts: frozenset[str],
        *,
        open_paths: tuple[str, ...] = (),
        open_pages: frozenset[str] = frozenset(),
        open_prefix: str | None = None,
        harmless_posts: tuple[str, ...] = (),
    ) -> None:
        """`hosts`: names of this server besides IP addresses. `open_paths` end paths that ask for tokens themselves;
        `open_pages` are whole paths that anybody may ask; what begins with `open_prefix` checks by itself who asks;
        `harmless_posts` end those that change nothing."""
        self._app = app
        self._callers = callers
        self._hosts = hosts
        self._open = open_paths
        self._pages = open_pages
        self._prefix = open_prefix
        self._harmless = harmless_posts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._foreign(request)
        path = request.url.path
        if refusal is None and not self._is_open(path):
            try:
                caller = await self._caller(request)
            except psycopg.Error as error:
                log.warning("a caller could not be told: %s", first_line(error))
                caller = refused(503, "The database cannot be reached.")
            if isinstance(caller, Response):
                refusal = caller
            else:
                scope.setdefault("state", {})["caller"] = caller
        await (refusal or self._app)(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        checks_itself = self._prefix is not None and path.startswith(self._prefix)
        return path.endswith(self._open) or path in self._pages or checks_itself

    def _foreign(self, request: Request) -> Response | None:
        host = _host_name(request.headers.get("host", ""))
        if host is None or not (host in self._hosts or _is_address(host)):
            return refused(403, f"This server is not {request.headers.get('host', 'without a name')}.")
        origin = request.headers.get("origin")
        own = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if origin is not None and origin.lower() != own.lower():
            return refused(403, "Requests of other web pages are refused.")
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return refused(403, "Requests of other web pages are refused.")
        return None

    async def _caller(self, request: Request) -> Caller | Response:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        reading = request.method in READING or request.url.path.endswith(self._harmless)
        # PyIceberg without a token says so in Python's words.
        if kind.lower() == "bearer" and token.strip() not in ("", "None"):
            found = await run_in_threadpool(self._callers.by_token, token.strip())
            return found or refused(401, "The token is not (or no longer) good.")
        host = request.client.host if request.client else None
        found = await run_in_threadpool(lambda: self._callers.by_place(host, reading=reading))
        return found or refused(401, "A token is needed: Authorization: Bearer TOKEN. See: runnel token")


def refused(code: int, message: str) -> Response:
    """An answer in the form of errors that the Iceberg protocol has, which will do for people too."""
    kinds = {401: "NotAuthorizedException", 403: "ForbiddenException", 503: "ServiceUnavailableException"}
    headers = {"WWW-Authenticate": "Bearer"} if code == 401 else None
    body = {"error": {"message": message, "type": kinds[code], "code": code}}
    return JSONResponse(body, code, headers)


def own_names(host: str) -> frozenset[str]:
    """The names by which a server that listens on `host` is called."""
    names = {"localhost", host.lower(), socket.gethostname().lower()}
    return frozenset(name for name in names if name)


def _host_name(header: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _is_address(host: str) -> bool:
    """Whether a host is given by its number: nobody can make a number point elsewhere."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
