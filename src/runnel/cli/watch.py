"""`runnel status --watch`: the same table again and again, until Ctrl-C."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runnel.cli.output import console, status_table
from runnel.errors import RunnelError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runnel.client import StreamTableStatus


def watch_status(load: Callable[[], Sequence[StreamTableStatus]], burden: Callable[[], str], seconds: float) -> None:
    """Show what `load` returns, and the `burden` if there is one, anew every so many seconds.

    A server that is away for a while does not end it.
    """
    from rich.live import Live

    try:
        with Live(console=console(), auto_refresh=False, vertical_overflow="visible") as live:
            while True:
                live.update(_screen(load, burden, seconds), refresh=True)
                time.sleep(seconds)
    except KeyboardInterrupt:
        return


def _screen(
    load: Callable[[], Sequence[StreamTableStatus]], burden: Callable[[], str], seconds: float
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    shown: RenderableType
    try:
        tables = load()
        shown = status_table(tables) if tables else Text("No stream tables yet.")
        if heavy := burden():
            shown = Group(shown, Text(heavy, style="yellow"))
    except RunnelError as error:
        shown = Text(f"{error.message} Trying again.", style="bold red")
    return Group(shown, Text(f"{dt.datetime.now():%H:%M:%S}, every {seconds:g} s; Ctrl-C ends it", style="dim"))
