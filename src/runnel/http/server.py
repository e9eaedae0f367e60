"""The HTTP server: a thread of the engine's process with sessions of its own.

It is a daemon thread and its sockets are the process's, so a killed engine leaves nothing behind.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from runnel.errors import RunnelError, UserError
from runnel.http.application import build
from runnel.http.callers import Callers
from runnel.http.connections import Connections
from runnel.http.guard import own_names
from runnel.http.hooks import Hooks
from runnel.http.place import HttpPlace, Listen
from runnel.model.looks import Looks

log = logging.getLogger(__name__)

_SECONDS_TO_START = 15.0
_SECONDS_TO_STOP = 5.0
_SECONDS_TO_KEEP = 75


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key, as files."""

    certificate: Path
    key: Path

    def check(self) -> None:
        for path in (self.certificate, self.key):
            if not path.is_file():
                raise UserError(f"There is no file {path}.", hint="--http-cert and --http-key name PEM files.")


class HttpServer:
    """Serves one database over HTTP until it is closed."""

    def __init__(
        self,
        dsn: str,
        place: HttpPlace,
        listen: Listen | None = None,
        *,
        tls: Tls | None = None,
        loopback_reads: bool = False,
        hooks: Hooks | None = None,
        looks: Looks | None = None,
    ) -> None:
        """`loopback_reads`: whoever is on this machine reads without a token. `hooks` takes webhooks in. `looks` are
        those of the engine in this process, if there is one."""
        self._place = place
        self._listen = listen or Listen()
        self._tls = tls
        self._hooks = hooks
        self._looks = looks or Looks()
        self._connections = Connections(dsn)
        self._callers = Callers(place.token(), self._connections.borrow, loopback_reads=loopback_reads)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> None:
        """Listen, and return when requests are answered."""
        if self._tls is not None:
            self._tls.check()
        opened = self._place.listen(self._listen)
        port = opened.getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.url = f"{scheme}://{_shown(self._listen.host)}:{port}"
        app = build(self._connections, self._callers, own_names(self._listen.host), self._hooks, self._looks)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            # Clients keep connections, and must be the first to close them: a commit that is sent into a closing one
            # is a commit whose end they do not know.
            timeout_keep_alive=_SECONDS_TO_KEEP,
            headers=[("Keep-Alive", f"timeout={_SECONDS_TO_KEEP - 15}")],
            timeout_graceful_shutdown=int(_SECONDS_TO_STOP),
            ssl_certfile=str(self._tls.certificate) if self._tls else None,
            ssl_keyfile=str(self._tls.key) if self._tls else None,
        )
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(opened,), name="http", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _SECONDS_TO_START
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise RunnelError("The HTTP server did not start.", hint="Its log says why; --no-http goes without.")
            time.sleep(0.005)
        self._place.remember(self.url, port)

    def close(self) -> None:
        """End what is under way, and stop listening."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_STOP + 1)
            if self._thread.is_alive() and self._server is not None:
                self._server.force_exit = True
                self._thread.join(1)
            self._thread = None
        self._connections.close()
        if self._hooks is not None:
            self._hooks.close()

    def _run(self, opened: socket.socket) -> None:
        assert self._server is not None
        try:
            self._server.run(sockets=[opened])
        except (Exception, SystemExit):
            log.exception("the HTTP server ended")
        finally:
            opened.close()


def _shown(host: str) -> str:
    """A host as an address has it; a server that listens everywhere is reached here."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"[{host}]" if ":" in host else host
