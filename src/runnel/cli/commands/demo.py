"""`runnel demo`: live data from PostgreSQL to a lake and DuckDB, in a temporary home."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Which(StrEnum):
    """The demos there are."""

    SHOP = "shop"
    LEADERBOARD = "leaderboard"
    ENGINES = "engines"
    OBSERVABILITY = "observability"


def demo(
    which: Annotated[
        Which,
        typer.Argument(
            help="shop: orders to a lake; leaderboard: a game's backend and its analysts; "
            "engines: one lake for DuckDB and PyIceberg, and for Trino if TRINO_URL names one; "
            "observability: a lake watched by stream tables over its own catalog."
        ),
    ] = Which.SHOP,
    duration: Annotated[float, typer.Option(min=1, help="Seconds of live traffic.")] = 60,
    rate: Annotated[
        float | None, typer.Option(min=0.1, help="Orders, matches or writes per second; by default 20, 50 or 4.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home to go on with it.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
) -> None:
    """Live changes, stream tables in PostgreSQL and in a lake, DuckDB over both; watched and verified."""
    from runnel.demo.run import run_demo

    if not run_demo(which.value, duration=duration, rate=rate, keep=keep, master=master):
        raise typer.Exit(1)
