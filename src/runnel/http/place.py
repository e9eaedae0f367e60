"""Where the HTTP server of a stack listens, and what it keeps: its port, its own token, its address.

A stack with a home keeps them in HOME/http. An engine on a server of one's own has no home; it keeps them in
~/.runnel/servers, by the address of its database.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import random
import socket
from dataclasses import dataclass
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from runnel.catalog.kept import kept_secret
from runnel.catalog.tokens import new_token
from runnel.errors import RunnelError, UserError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen. Without a port the one that was used last, or a free one."""

    host: str = LOOPBACK
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Listen:
        """From HOST:PORT, HOST or :PORT.

        >>> Listen.parse("0.0.0.0:8080"), Listen.parse("[::1]:80"), Listen.parse(":0")
        (Listen(host='0.0.0.0', port=8080), Listen(host='::1', port=80), Listen(host='127.0.0.1', port=0))
        """
        host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host, port = text, ""
        if port and not (port.isdecimal() and int(port) < 65536):
            raise UserError(f"--http {text} is not an address.", hint="Use HOST:PORT, such as 127.0.0.1:8080.")
        return cls(host.strip("[]") or LOOPBACK, int(port) if port else None)


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """The files of one HTTP server."""

    folder: Path

    @classmethod
    def of_home(cls, home: Path) -> HttpPlace:
        return cls(home / "http")

    @classmethod
    def of_database(cls, dsn: str) -> HttpPlace:
        """For an engine without a home."""
        words = conninfo_to_dict(dsn)
        key = "\n".join(str(words.get(word) or "") for word in ("host", "hostaddr", "port", "dbname"))
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cls(Path.home() / ".runnel" / "servers" / name)

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def url(self) -> str | None:
        """Where the server listens, or listened last."""
        try:
            return (self.folder / "url").read_text(encoding="ascii").strip() or None
        except OSError:
            return None

    def token(self) -> str:
        """The server's own token, made at the first time; only the one who runs the server can read it."""
        self._make_folder()
        path = self.token_file
        return kept_secret(path, new_token, way_out=f"Remove it: the next start makes a new one. rm {path}")

    def listen(self, wanted: Listen) -> socket.socket:
        """A socket that listens: on the port that was asked for, else on the one used last, else on a free one."""
        ports = [wanted.port] if wanted.port is not None else [*self._remembered(), *_random_ports()]
        for port in ports:
            try:
                opened = _bound(wanted.host, port)
            except OSError as error:
                if wanted.port is not None or isinstance(error, socket.gaierror):
                    raise UserError(
                        f"The HTTP server cannot listen on {wanted.host}:{port}: {error.strerror}.",
                        hint="Choose another address with --http HOST:PORT, or none with --no-http.",
                    ) from None
                continue
            return opened
        raise RunnelError(f"No free TCP port was found on {wanted.host} for the HTTP server.")

    def remember(self, url: str, port: int) -> None:
        """Keep the address for `runnel url`, and the port for the next start."""
        self._make_folder()
        (self.folder / "port").write_text(f"{port}\n", encoding="ascii")
        (self.folder / "url").write_text(f"{url}\n", encoding="ascii")

    def _remembered(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError):
            return [int((self.folder / "port").read_text(encoding="ascii"))]
        return []

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _random_ports() -> list[int]:
    # Below the ports that systems hand out to outgoing connections, which could hold ours at a restart.
    return random.sample(range(20_000, 25_000), 50)  # noqa: S311  (no secret)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    opened = socket.socket(family, kind)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except BaseException:
        opened.close()
        raise
    return opened
