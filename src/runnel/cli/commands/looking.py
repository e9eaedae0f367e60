"""`runnel init --check` and `--print-sql`: look at a server before anything is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from runnel.cli.output import console, done
from runnel.cli.target import reaching

if TYPE_CHECKING:
    from runnel.catalog.server_check import Finding

_MARKS = {"yes": ("works", "green"), "less": ("less", "yellow"), "no": ("missing", "red")}


def check(target: str) -> None:
    """Print what works on a server with this role, and what would have to be run for the rest."""
    from runnel.catalog.server_check import Verdict, look
    from runnel.catalog.sessions import connect

    with reaching(target), connect(target, "runnel check") as conn:
        findings = look(conn)
        who = f"Role {conn.info.user} in database {conn.info.dbname}:"
    done(who)
    for finding in findings:
        _print(finding)
    if any(finding.verdict is Verdict.NO for finding in findings):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    out = console()
    word, colour = _MARKS[finding.verdict.value]
    out.print(f"  {word:<8}", style=colour, end="", markup=False)
    out.print(finding.what, markup=False)
    if finding.why:
        out.print(f"          {finding.why}", style="dim", markup=False)
    for statement in finding.statements:
        out.print(f"            {statement}", markup=False)


def print_script(target: str | None) -> None:
    """Print the installation as SQL: what a server lacks, or all of it."""
    from runnel import __version__
    from runnel.catalog.migrate import applied, check_server
    from runnel.catalog.script import installation_script
    from runnel.catalog.sessions import connect
    from runnel.model.versions import NEWEST, Version, version_of

    if target is None:
        typer.echo(installation_script(Version(NEWEST), __version__))
        return
    with reaching(target), connect(target, "runnel check") as conn:
        check_server(conn)
        typer.echo(installation_script(version_of(conn.info.server_version), __version__, applied(conn)))
