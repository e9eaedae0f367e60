"""The files of the page. They hold no data, so anybody may read them; what they show is asked for with a token."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

FOLDER = "/page/"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    # Nothing is loaded from elsewhere, and nobody frames the page to make others press its buttons.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@cache
def files() -> dict[str, tuple[bytes, str, str]]:
    """By path: content, type, and a mark that changes with the content."""
    found = {}
    for each in resources.files("runnel.http.page").joinpath("static").iterdir():
        content = each.read_bytes()
        path = "/" if each.name == "index.html" else FOLDER + each.name
        mark = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        found[path] = content, TYPES[each.name.rpartition(".")[2]], mark
    return found


async def file(request: Request) -> Response:
    content, kind, mark = files()[request.url.path]
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers={**HEADERS, "ETag": mark})
    return Response(content, media_type=kind, headers={**HEADERS, "ETag": mark})
