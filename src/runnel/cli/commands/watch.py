"""`runnel watch`: what a stream table's refreshes change, as they are committed."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.cli.output import console, note
from runnel.cli.target import DsnOption, HomeOption, open_client
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.subscription import Delta

FORMATS = ("text", "json")


def watch(
    name: Annotated[str, typer.Argument(help="Stream table.")],
    after: Annotated[
        int | None, typer.Option(help="Begin with the delta after this version; from now on if left out.", min=0)
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, or json: a line per delta, for pipes.")] = "text",
    seconds: Annotated[
        float | None, typer.Option(help="End after so many seconds without a delta.", min=0.1, metavar="SECONDS")
    ] = None,
    home: HomeOption = None,
    dsn: DsnOption = None,
) -> None:
    """Print what the refreshes of a stream table change, as it is committed, until Ctrl-C.

    Changes come from the table's outbox; one is attached if it has none.
    """
    if form not in FORMATS:
        raise UserError(f"There is no format {form}.", hint="Use text or json.")
    with open_client(home, dsn) as client, contextlib.suppress(KeyboardInterrupt):
        if form == "text":
            note(f"Watching {name}; Ctrl-C ends it.")
        for delta in client.subscribe(name, after, seconds=seconds):
            if form == "json":
                typer.echo(_line(asdict(delta)))
            else:
                _print(delta)


def _line(delta: Mapping[str, Any]) -> str:
    """A delta as JSON, with all digits of its numbers.

    >>> from decimal import Decimal
    >>> _line({"inserted": [{"price": Decimal("5.00"), "name": "é"}]})
    '{"inserted": [{"price": 5.00, "name": "é"}]}'
    """
    from decimal import Decimal

    # No text of PostgreSQL's has a zero character, so what stands between two of them is a number of ours.
    def plain(value: Any) -> str:
        return f"\0{value}\0" if isinstance(value, Decimal) else str(value)

    return re.sub(r'"\\u0000(.*?)\\u0000"', r"\1", json.dumps(delta, default=plain, ensure_ascii=False))


def _print(delta: Delta) -> None:
    from rich.text import Text

    when = f"{delta.at:%H:%M:%S}" if delta.at else ""
    head = f"{when}  version {delta.version}" + ("  everything begins anew" if delta.reset else "")
    console().print(Text(head, style="bold"))
    for sign, style, rows in (("-", "red", delta.deleted), ("+", "green", delta.inserted)):
        for row in rows:
            console().print(Text(f"  {sign} {_words(row)}", style=style), soft_wrap=True)


def _words(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={'NULL' if value is None else value}" for name, value in row.items())
