"""Webhooks: requests of other services, each for a pipeline that checks by itself who sent it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

PREFIX = "/hooks/"
_MOST_BYTES = 10 << 20


class Told(Protocol):
    """What the sender is told."""

    @property
    def status(self) -> int: ...
    @property
    def text(self) -> str: ...


class Hooks(Protocol):
    """Whoever takes the messages in."""

    def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Told:
        """A request for the pipeline of that name."""

    def close(self) -> None:
        """No more of them."""


def routes(hooks: Hooks) -> list[Route]:
    """The way to all pipelines."""

    async def take(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return PlainTextResponse(f"A message has at most {_MOST_BYTES >> 20} MiB.\n", 413)
        name = unquote(request.path_params["name"])
        told: Any = await run_in_threadpool(hooks.receive, name, dict(request.headers), body)
        return PlainTextResponse(f"{told.text}\n", told.status)

    return [Route(PREFIX + "{name}", take, methods=["POST"])]


async def _body(request: Request) -> bytes | None:
    """All of it; None if it is too long, of which no more is read than shows that."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > _MOST_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)
