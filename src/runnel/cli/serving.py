"""HTTP beside an engine: how it was asked for, and its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.cli import logs
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.http.server import HttpServer
    from runnel.model.looks import Looks

OFF = "off"


@dataclass(frozen=True, slots=True)
class Wish:
    """How HTTP was asked for; not looked at before it is served, so that other commands start fast."""

    address: str
    certificate: str | None
    key: str | None


def wish(address: str | None, certificate: str | None, key: str | None) -> Wish | None:
    """What was asked for, if anything; refused before anything starts."""
    if address is None or address == OFF:
        return None
    if (certificate is None) != (key is None):
        raise UserError("--http-cert and --http-key belong together.", hint="Give both, as PEM files.")
    from runnel.http.place import Listen

    Listen.parse(address)
    return Wish(address, certificate, key)


def serve(address: str, http: Wish, home: Path | None, looks: Looks) -> HttpServer:
    """Serve HTTP beside the engine of a database, in a thread of its own."""
    from runnel.http.place import HttpPlace, Listen
    from runnel.http.server import HttpServer, Tls
    from runnel.relay.webhooks import Webhooks

    tls = None
    if http.certificate is not None and http.key is not None:
        tls = Tls(Path(http.certificate).expanduser(), Path(http.key).expanduser())
    server = HttpServer(
        address,
        HttpPlace.of_database(address) if home is None else HttpPlace.of_home(home),
        Listen.parse(http.address),
        tls=tls,
        # The server of a home trusts its machine anyway.
        loopback_reads=home is not None,
        hooks=Webhooks(address),
        looks=looks,
    )
    server.start()
    logs.log.info("HTTP on %s", server.url)
    return server
