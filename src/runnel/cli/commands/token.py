"""`runnel token ...`: who may read over HTTP, and what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.cli.output import JsonOption, done, note, print_json
from runnel.cli.target import DsnOption, HomeOption, http_place, reaching, resolve_dsn
from runnel.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

app = typer.Typer(
    help="Tokens of the HTTP server. A token speaks for a role: it reads the tables that the role may SELECT.\n\n"
    "The server's own token speaks for the engine; it is in the file that `runnel token file` names.",
    no_args_is_help=True,
)


@app.command()
def create(
    role: Annotated[str, typer.Option(help="The role in PostgreSQL that the token speaks for.")],
    label: Annotated[str | None, typer.Option(help="What it is for; shown by `runnel token list`.")] = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Make a token and print it. It is shown this once: the database keeps only its hash."""
    from runnel.catalog.tokens import create_token

    with _connect(home, dsn) as conn:
        number, token = create_token(conn, role, label)
    note(f"Token {number} of role {role}. Keep it: it cannot be shown again.")
    typer.echo(token)


@app.command("list")
def list_all(json: JsonOption = False, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """List the tokens: their numbers, roles and labels."""
    from runnel.catalog.tokens import list_tokens

    with _connect(home, dsn) as conn:
        tokens = list_tokens(conn)
    if json:
        print_json(tokens)
        return
    for each in tokens:
        label = f"  {each.label}" if each.label else ""
        done(f"{each.token_id}  {each.role}  {each.created_at:%Y-%m-%d %H:%M} by {each.created_by}{label}")
    if not tokens:
        done("No tokens yet. Make one with: runnel token create --role ROLE")


@app.command()
def revoke(
    number: Annotated[int, typer.Argument(help="As `runnel token list` shows it.")],
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Make a token worthless."""
    from runnel.catalog.tokens import revoke_token

    with _connect(home, dsn) as conn:
        if not revoke_token(conn, number):
            raise UserError(f"There is no token {number}.", hint="See: runnel token list")
    done(f"Token {number} is revoked.")


@app.command()
def file(home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Print where the server's own token is kept."""
    typer.echo(http_place(home, dsn)[0].token_file)


def _connect(home: Path | None, dsn: str | None) -> psycopg.Connection[Any]:
    import psycopg

    target = resolve_dsn(home, dsn)
    with reaching(target):
        return psycopg.connect(target, autocommit=True)
