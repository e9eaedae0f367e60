"""A web server that keeps what it gets, and fails on purpose."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What has arrived, in order, and what is answered."""

    url: str = ""
    answer: Callable[[bytes], int] = lambda _: 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """Of requests that were answered well."""
    asked: int = 0
    location: str | None = None
    """Where its answers point to."""
    text: bytes = b""
    """What its answers say."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # noqa: N802
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.asked += 1
            status = receiver.answer(body)
            if 200 <= status < 300:
                receiver.got.append((dict(self.headers.items()), body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(receiver.text)))
            if receiver.location is not None:
                self.send_header("Location", receiver.location)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(receiver.text)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
