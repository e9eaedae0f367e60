"""Which server a command talks to: a flag, else the environment, else `runnel.toml`, else ~/.runnel.

A password may come with the DSN, from --password-file, or, as libpq has it, from PGPASSWORD or PGPASSFILE.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runnel.cli.settings import effective
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.client import Client
    from runnel.http.place import HttpPlace
    from runnel.server.account import Report
    from runnel.server.embedded import EmbeddedServer

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Home directory of the embedded stack (RUNNEL_HOME; ~/.runnel).", metavar="DIR"),
]
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Your own PostgreSQL (from 15 on) instead of the embedded one (RUNNEL_DSN, or --dsn-file FILE). Leave the "
        "password out: it is taken from PGPASSWORD, PGPASSFILE, ~/.pgpass or --password-file FILE.",
        metavar="DSN",
    ),
]


def given_dsn(home: Path | None, dsn: str | None) -> str | None:
    """The DSN that was named, with its password; None when the embedded server of a home directory is meant."""
    from runnel.dsn import readable, with_password

    values = effective(home=home, dsn=dsn)
    if dsn is not None:
        hide_password("--dsn", dsn)
    named = values["dsn"].text
    if values["dsn_file"].text is not None:
        named = first_line(values["dsn_file"].text, "--dsn-file")
    if named is None:
        return None
    words = readable(named)
    file = values["password_file"].text
    if file is not None and not words.get("password"):
        return with_password(named, first_line(file, "--password-file"))
    return named


def hide_password(option: str, dsn: str) -> None:
    """Warn of a password on the command line, and take it out of the list of processes."""
    from runnel.cli.arguments import hide_argument
    from runnel.cli.output import note
    from runnel.dsn import secrets

    if secrets(dsn):
        hide_argument(dsn)
        note(
            f"{option} holds a password, and other users can see the arguments of a command: "
            "better set PGPASSWORD, or name a file with --password-file."
        )


def first_line(file: str, option: str) -> str:
    """A secret that is kept in a file."""
    from runnel.cli.output import note

    path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
        if path.stat().st_mode & 0o007:
            note(f"Everybody can read {path}: chmod 600 {path}")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"{option}: {path} cannot be read: {why}.", hint="Name a file that you may read.") from None
    if not text:
        raise UserError(f"{option}: {path} is empty.")
    return text.splitlines()[0]


def chosen_home(home: Path | None) -> Path | None:
    """The home directory that was named anywhere, else None."""
    value = effective(home=home)["home"]
    return home if value.origin == "default" or value.text is None else Path(value.text)


def embedded(home: Path | None, report: Report | None = None) -> EmbeddedServer:
    from runnel.cli.output import note
    from runnel.server.embedded import EmbeddedServer

    return EmbeddedServer(chosen_home(home), on_event=report or note)


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


def http_place(home: Path | None, dsn: str | None) -> tuple[HttpPlace, str]:
    """What the HTTP server of a stack keeps on this machine, and its address."""
    from runnel.http.place import HttpPlace

    named = given_dsn(home, dsn)
    place = HttpPlace.of_database(named) if named is not None else HttpPlace.of_home(embedded(home).home.path)
    if place.url is None:
        raise UserError(
            "No HTTP server of this stack has run on this machine.",
            hint="`runnel up` starts one, unless it was told --no-http.",
        )
    return place, place.url


@contextlib.contextmanager
def reaching(dsn: str) -> Iterator[None]:
    """Tell in one line why a server cannot be reached; errors of statements pass."""
    import psycopg

    from runnel.dsn import connection_failure

    try:
        yield
    except psycopg.OperationalError as error:
        if error.sqlstate is not None:
            raise
        raise connection_failure(error, dsn) from error


def open_client(home: Path | None, dsn: str | None) -> Client:
    from runnel.cli.output import note
    from runnel.client import connect

    return connect(resolve_dsn(home, dsn), on_notice=note)


def absolute(data_path: str | None) -> str | None:
    """A folder as seen from where the command runs; URLs are what they are."""
    if data_path is None or "://" in data_path:
        return data_path
    return f"{Path(data_path).expanduser().resolve()}/"
