"""`runnel status`, `history`, `explain`, `verify` and `lineage`: what is there, what happened, is it right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runnel.answers import VerifyResult
from runnel.cli.output import (
    JsonOption,
    done,
    note,
    print_history,
    print_json,
    print_lineage,
    print_progress,
    print_status,
    print_verified,
)
from runnel.cli.progress import shown
from runnel.cli.target import DsnOption, HomeOption, open_client
from runnel.errors import RunnelError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runnel.answers import Check
    from runnel.client import Client, StreamTableStatus

NameArgument = Annotated[str, typer.Argument(help="Stream table.")]
OptionalName = Annotated[str | None, typer.Argument(help="Stream table; all when none is named.")]


def status(
    name: OptionalName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds in between.", metavar="SECONDS")] = 2.0,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Show every stream table: state, mode, staleness, last refresh, pending changes, errors."""
    if watch and json:
        raise UserError("--watch and --json exclude each other.", hint="A program asks as often as it likes.")
    with open_client(home, dsn) as client:
        if watch:
            from runnel.cli.watch import watch_status

            watch_status(lambda: _chosen(client.status(), name), lambda: _burden(client.health()), every)
            return
        tables = _chosen(client.status(), name)
        work = [] if json else client.progress()
        health = [] if json else client.health()
    print_json(tables) if json else print_status(tables)
    print_progress(work)
    if burden := _burden(health):
        note(burden, style="yellow")
    if name is None and (engine := _result(health, "scheduler_running")):
        note(engine)


def _result(health: Sequence[Check], name: str) -> str:
    """What a check says; of the engine: who it is, and with how many prepared plans."""
    return next((check.result for check in health if check.name == name), "")


def _burden(health: Sequence[Check]) -> str:
    """That there is more to do than the machine can, if it is so."""
    late = [check for check in health if check.name == "keeping_up" and check.severity != "OK"]
    return _result(late, "keeping_up")


def _chosen(tables: list[StreamTableStatus], name: str | None) -> list[StreamTableStatus]:
    found = [each for each in tables if name in (None, each.relation, each.name, f"{each.schema}.{each.name}")]
    if name is not None and not found:
        raise UserError(f"There is no stream table {name}.", hint="`runnel status` lists them.")
    return found


def history(
    name: OptionalName = None,
    limit: Annotated[int, typer.Option(min=1, help="How many refreshes.")] = 20,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Show the latest refreshes, newest first."""
    with open_client(home, dsn) as client:
        refreshes = client.history(name, limit)
    print_json(refreshes) if json else print_history(refreshes)


def explain(name: NameArgument, json: JsonOption = False, home: HomeOption = None, dsn: DsnOption = None) -> None:
    """Show how a stream table is maintained: stages, delta rules, what is pushed to PostgreSQL."""
    with open_client(home, dsn) as client:
        text = client.explain(name)
    print_json(text.splitlines()) if json else done(text)


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Stream tables; all when none is named.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, as when none is named.")] = False,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Refresh, then compare with the query in the same snapshot; exit code 1 when a row differs.

    A table that cannot be verified, say one in ERROR, is reported like one that differs, and the others are looked at.
    """
    if everything and names:
        raise UserError("Name stream tables, or use --all.", hint="Both together are one too many.")
    with open_client(home, dsn) as client, shown(client):
        chosen = names or [each.relation for each in client.status()]
        results = {name: _verified(client, name) for name in chosen}
    if json:
        print_json(results)
    else:
        for name, result in results.items():
            print_verified(name, result)
    if not all(result.ok for result in results.values()):
        raise typer.Exit(1)


def _verified(client: Client, name: str) -> VerifyResult:
    try:
        return client.verify(name)
    except RunnelError as error:
        return VerifyResult(ok=False, missing=(), unexpected=(), counts={}, error=error.message)


def lineage(
    name: NameArgument,
    snapshot: Annotated[int | None, typer.Option(help="Only this snapshot and older ones.", metavar="N")] = None,
    lake: Annotated[str | None, typer.Option(help="Only in this lake.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many snapshots.")] = 5,
    json: JsonOption = False,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Walk from the lake snapshots of a stream table back to the refreshes and source versions that made them."""
    with open_client(home, dsn) as client:
        found = client.lineage(name, lake=lake, snapshot=snapshot, limit=limit)
    if not found and not json:
        raise UserError(
            f"{name} has left no snapshot in a lake.",
            hint=f"Publish a stream table with: runnel alter {name} --sink ducklake",
        )
    print_json(found) if json else print_lineage(found)
