"""A bar on the terminal while the engine works on a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runnel.cli.output import console, note, rows_of, span

if TYPE_CHECKING:
    from rich.console import Console

    from runnel.client import Client, Progress


@contextlib.contextmanager
def shown(client: Client) -> Iterator[None]:
    """Show how far calls of this client have come; nothing where nobody looks, or when they are quick."""
    screen = console(stderr=True)
    try:
        with _bars(client, screen) if screen.is_terminal else contextlib.nullcontext():
            yield
    except KeyboardInterrupt:
        # The call was cancelled in the server, which the engine hears.
        note("Interrupted: the engine stops the work and undoes what it has done of it.")
        raise


@contextlib.contextmanager
def _bars(client: Client, screen: Console) -> Iterator[None]:
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
    with Bars(*columns, console=screen, transient=True) as bars:
        known: dict[str, TaskID] = {}

        def tell(each: Progress) -> None:
            if each.name not in known:
                known.clear()
                for task in list(bars.tasks):
                    bars.remove_task(task.id)
                known[each.name] = bars.add_task(each.name, total=None, told="")
            bars.update(
                known[each.name],
                description=f"{each.command} {each.name}: {each.phase}",
                completed=each.rows_done or 0,
                total=each.rows_total,
                told=in_words(each),
            )

        with client.watched(tell):
            yield


def in_words(each: Progress) -> str:
    """How much is done of how much, for how long, and how long still."""
    left = "" if each.remaining is None else f", about {span(each.remaining)} left"
    return f"{rows_of(each)}{span(each.elapsed)}{left}"
