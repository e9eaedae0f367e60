"""A proxy in front of an object store that can be down, slow, broken or full, and well again."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

from tests.lake.s3 import S3

Trouble = Literal["none", "refuse", "slow", "hang", "late", "cut", "full"]
UPLOADS = ("PUT", "POST")
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}
FULL = b'<?xml version="1.0"?><Error><Code>InsufficientStorage</Code><Message>The disk is full.</Message></Error>'


class Flaky:
    """The store as it is reached through the proxy, and the trouble it is in.

    refuse  nobody listens, and open connections are gone
    slow    every request waits first, for `seconds`
    hang    every request waits until the trouble is over
    late    uploads wait until `release`, also when the trouble is over; other requests pass
    cut     half of an upload's body reaches the proxy, none the store; then the connection breaks
    full    uploads are answered 507 Insufficient Storage
    """

    def __init__(self, store: S3) -> None:
        self._upstream = store.port
        self.requests: Counter[str] = Counter()
        """By method, whatever became of them."""
        self.troubled = 0
        """Requests that met the trouble."""
        self.seconds = 0.0
        self._trouble: Trouble = "none"
        self._passing = 0
        self._well = threading.Event()
        self._well.set()
        self._released = threading.Event()
        self.held = 0
        """Uploads that wait to be released."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._listen()
        self.s3 = store.through(self._port)

    @property
    def trouble(self) -> Trouble:
        return self._trouble

    def be(self, trouble: Trouble, *, seconds: float = 0.0, after: int = 0) -> None:
        """Get into trouble, or out of it with "none"; `after` so many uploads that still pass."""
        self.seconds, self._passing, self._trouble, self.troubled = seconds, after, trouble, 0
        if trouble == "hang":
            self._well.clear()
        else:
            self._well.set()
        if trouble == "refuse":
            self._close()
        else:
            self._listen()

    def close(self) -> None:
        self._trouble = "none"
        self._well.set()
        self.release()
        self._close()

    def release(self) -> None:
        """Let uploads that came in the trouble "late" go on to the store; nobody waits for them any more."""
        self._released.set()

    def hold(self, forward: Callable[[], None]) -> None:
        """Forward an upload when it is released."""
        with self._lock:
            self.held += 1
        self._released.wait()
        try:
            forward()
        finally:
            with self._lock:
                self.held -= 1

    def meets(self, method: str) -> Trouble:
        """What happens to a request that arrives now."""
        with self._lock:
            self.requests[method] += 1
            upload = method in UPLOADS
            trouble = self._trouble
            if trouble in {"late", "cut", "full"} and not upload:
                return "none"
            if trouble != "none" and self._passing > 0:
                self._passing -= upload
                return "none"
            self.troubled += trouble != "none"
            return trouble

    def pause(self) -> None:
        """Wait as a slow or hanging store makes its clients wait."""
        if self._trouble == "slow":
            threading.Event().wait(self.seconds)
        self._well.wait()

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def upstream(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=60)

    def _listen(self) -> None:
        if self._server is not None:
            return
        flaky = self

        class Handler(_Handler):
            proxy = flaky

        self._server = _Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="flaky", daemon=True).start()

    def _close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # Ending the trouble must not wait for requests that are stuck in it.
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A broken connection is this proxy's purpose, not news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Flaky

    def setup(self) -> None:
        super().setup()
        self.proxy.opened(self.connection)

    def finish(self) -> None:
        self.proxy.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        trouble = self.proxy.meets(self.command)
        if trouble == "cut":
            self.rfile.read(max(length // 2, 1) if length else 0)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self.rfile.read(length)
        if trouble == "full":
            self._answer(507, "Insufficient Storage", [("Content-Type", "application/xml")], FULL)
            return
        if trouble in {"slow", "hang"}:
            self.proxy.pause()
        if trouble == "late":
            self.proxy.hold(lambda: self._forward(body))
        else:
            self._forward(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _forward(self, body: bytes) -> None:
        upstream = self.proxy.upstream()
        try:
            # The host is part of the signature: it goes on as the client sent it.
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_HEADERS:
                    upstream.putheader(name, value)
            if body or self.command in UPLOADS:
                upstream.putheader("Content-Length", str(len(body)))
            upstream.endheaders(body or None)
            answer = upstream.getresponse()
            self._answer(answer.status, answer.reason, answer.getheaders(), answer.read())
        finally:
            upstream.close()

    def _answer(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status, reason)
        said = None
        for name, value in headers:
            if name.lower() == "content-length":
                said = value
            elif name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        # The answer to HEAD tells the length of what it does not bring.
        self.send_header("Content-Length", said if self.command == "HEAD" and said else str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are counted, not printed."""


@contextlib.contextmanager
def proxy(store: S3) -> Iterator[Flaky]:
    """A proxy until the block ends."""
    flaky = Flaky(store)
    try:
        yield flaky
    finally:
        flaky.close()
