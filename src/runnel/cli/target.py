"""Which server a command talks to: --dsn, --home, RUNNEL_DSN, RUNNEL_HOME, or ~/.runnel, in this order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.client import Client
    from runnel.server.embedded import EmbeddedServer

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Home directory of the embedded stack (RUNNEL_HOME; ~/.runnel).", metavar="DIR"),
]
DsnOption = Annotated[
    str | None,
    typer.Option("--dsn", help="Your own PostgreSQL 18 instead of the embedded one (RUNNEL_DSN).", metavar="DSN"),
]


def given_dsn(home: Path | None, dsn: str | None) -> str | None:
    """The DSN the user named, or None when the embedded server of a home directory is meant."""
    if home is not None and dsn is not None:
        raise UserError("--home and --dsn exclude each other.", hint="A home directory holds its own server.")
    if dsn is not None or home is not None:
        return dsn
    return os.environ.get("RUNNEL_DSN") or None


def embedded(home: Path | None) -> EmbeddedServer:
    from runnel.cli.output import note
    from runnel.server.embedded import EmbeddedServer

    return EmbeddedServer(home, on_event=note)


def resolve_dsn(home: Path | None, dsn: str | None) -> str:
    """The DSN of a server that should be running by now."""
    named = given_dsn(home, dsn)
    if named is not None:
        return named
    server = embedded(home)
    if not server.is_running:
        where = f" --home {home}" if home else ""
        raise UserError(f"No stack is running in {server.home.path}.", hint=f"Start it with: runnel up{where}")
    return server.dsn


def open_client(home: Path | None, dsn: str | None) -> Client:
    from runnel.cli.output import note
    from runnel.client import connect

    return connect(resolve_dsn(home, dsn), on_notice=note)


def absolute(data_path: str | None) -> str | None:
    """A folder as seen from where the command runs; URLs are what they are."""
    if data_path is None or "://" in data_path:
        return data_path
    return f"{Path(data_path).expanduser().resolve()}/"
