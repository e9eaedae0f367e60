"""`runnel logs` and `runnel service`: a stack that runs in the background."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from runnel.cli.settings import common, effective
from runnel.cli.target import DsnOption, HomeOption, chosen_home, given_dsn
from runnel.errors import UserError

app = typer.Typer(help="Run the stack as a service of the machine.", no_args_is_help=True)

LOG_NAME = "engine.log"
_LOOK_SECONDS = 0.2

_UNIT = """\
[Unit]
Description=Runnel keeps stream tables fresh
Wants=network-online.target
After=network-online.target postgresql.service

[Service]
ExecStart={command}
User={user}
WorkingDirectory={folder}
Restart=on-failure
RestartSec=5
# The engine ends Spark and its server by itself.
KillMode=mixed
TimeoutStopSec=90

[Install]
WantedBy=multi-user.target
"""


def log_file(home: Path | None, dsn: str | None, named: str | None) -> Path | None:
    """Where the engine's log is: as named, else in the home of the stack; nowhere with a server of one's own."""
    if named is not None:
        return Path(named).expanduser()
    if given_dsn(home, dsn) is not None:
        return None
    from runnel.server.home import resolve_home

    return resolve_home(chosen_home(home)).path / LOG_NAME


def logs(
    home: HomeOption = None,
    dsn: DsnOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
) -> None:
    """Show the log of the engine: the end of it, and with -f what comes."""
    path = log_file(home, dsn, effective(home=home, dsn=dsn)["log_file"].text)
    if path is None or not path.is_file():
        raise UserError(
            "There is no log file." if path is None else f"There is no log file {path}.",
            hint="An engine with --dsn writes one if it is told where: runnel up --log-file FILE, or log_file in "
            "runnel.toml."
            if path is None
            else "It is written when the stack starts: runnel up",
        )
    with path.open(encoding="utf-8", errors="replace") as opened:
        for line in deque(opened, maxlen=lines):
            typer.echo(line, nl=False)
        place = opened.tell()
    if follow:
        try:
            for text in _following(path, place):
                typer.echo(text, nl=False)
        except KeyboardInterrupt:
            return


def _following(path: Path, place: int) -> Iterator[str]:
    """What is added to a file, also when it is set aside for a new one: the old one is read to its end first."""
    while True:
        if not path.is_file():
            time.sleep(_LOOK_SECONDS)
            continue
        with path.open(encoding="utf-8", errors="replace") as opened:
            opened.seek(place)
            while True:
                replaced = _is_another(path, opened.fileno())
                yield opened.read()
                if replaced:
                    break
                time.sleep(_LOOK_SECONDS)
        place = 0


def _is_another(path: Path, opened: int) -> bool:
    """Whether under a name is now another file than the one that was opened there."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False  # between the two


@app.command(
    "print",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]},
)
def print_unit(
    context: typer.Context,
    user: Annotated[str | None, typer.Option(help="The account that it runs as; yours unless given.")] = None,
) -> None:
    """Print a unit for systemd; all other options go to `runnel up`.

    Example:

        runnel service print --home /srv/runnel --workers 4 | sudo tee /etc/systemd/system/runnel.service

        sudo systemctl enable --now runnel
    """
    import getpass

    from runnel.dsn import secrets

    general = common.get()
    files = {"config": general.config, "dsn-file": general.dsn_file, "password-file": general.password_file}
    options = [word for name, path in files.items() if path for word in (f"--{name}", str(path.resolve()))]
    options += context.args
    if any(secrets(each.removeprefix("--dsn=")) for each in options):
        raise UserError(
            "A unit can be read by everybody, so it must not hold a password.",
            hint="Name files instead: --dsn-file FILE, or --dsn without it and --password-file FILE.",
        )
    program = Path(sys.argv[0]).resolve()
    start = [str(program)] if os.access(program, os.X_OK) else [sys.executable, "-m", "runnel.cli.main"]
    command = shlex.join([*start, "up", *options])
    typer.echo(_UNIT.format(command=command, user=user or getpass.getuser(), folder=Path.cwd()), nl=False)
