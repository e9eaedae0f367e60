"""`runnel demo`: a shop with live orders, in a temporary home."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    duration: Annotated[float, typer.Option(min=1, help="Seconds of live orders.")] = 60,
    rate: Annotated[float, typer.Option(min=0.1, help="Orders per second.")] = 20,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the demo's home to go on with it.")] = False,
    master: Annotated[str, typer.Option(help="Spark master.")] = "local[*]",
) -> None:
    """A shop with live orders and three stream tables, watched and verified."""
    from runnel.demo.run import run_demo

    if not run_demo(duration=duration, rate=rate, keep=keep, master=master):
        raise typer.Exit(1)
