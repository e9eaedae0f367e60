"""`runnel bench`: known workloads, verified and measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.bench.workload import Workload

app = typer.Typer(
    help="Known workloads: every stream table is compared with PostgreSQL after each change, and timed.",
    no_args_is_help=True,
)

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        help="Keep the server here; a later run with the same home goes on where this one stopped. "
        "By default a temporary directory that is removed.",
    ),
]
KeepOption = Annotated[bool, typer.Option("--keep", help="Do not remove the temporary home.")]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write Markdown here, after every step; FILE with suffix .json holds all figures. "
        "By default both go into the home.",
    ),
]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Times each round of changes is repeated.")]
MinutesOption = Annotated[
    float, typer.Option("--minutes", min=0.01, help="A step that takes longer is ended and counts as a failure.")
]
MasterOption = Annotated[str, typer.Option(help="Spark master.")]
Prepared = tuple[str, "Callable[[list[float]], Workload]"]
"""The name of a run, and what makes its workload once the shares of the changes are known."""


def _shared(
    home: HomeOption = None,
    rounds: RoundsOption = 1,
    queries: str = "",
    change: Annotated[
        str, typer.Option("--change", metavar="%,..", help="Share of the tables that a round changes, in percent.")
    ] = "0.1,1",
    report: ReportOption = None,
    minutes: MinutesOption = 30,
    keep: KeepOption = False,
    master: MasterOption = "local[*]",
) -> None:
    """The options of every workload. Only its signature is used; each says for itself which `queries` it has."""


def _workload(prepare: Callable[..., Prepared]) -> Callable[..., None]:
    """A command that runs what a function prepares: its own options come first, then those of every workload."""
    own = inspect.signature(prepare, eval_str=True).parameters
    shared = inspect.signature(_shared, eval_str=True).parameters
    named = {**{name: own[name] for name in own if name not in shared}, **shared, **own}

    def command(change: str, rounds: int, **given: Any) -> None:
        name, workload = prepare(**{option: given.pop(option) for option in own})
        chosen = workload(_shares(change))
        from runnel.bench.run import run_workload

        # The exit code says whether everything held.
        if not run_workload(chosen, name=name, repeat=rounds, **given):
            raise typer.Exit(1)

    update_wrapper(command, prepare)
    # Typer asks for the parameters by their signature, and for the types by the annotations.
    command.__signature__ = inspect.Signature(list(named.values()))  # type: ignore[attr-defined]
    command.__annotations__ = {name: option.annotation for name, option in named.items()}
    return command


@app.command()
@_workload
def tpch(
    scale: Annotated[float, typer.Option("--scale", min=0.001, help="Scale factor: 1 is 6 million lineitems.")] = 0.01,
    queries: Annotated[str, typer.Option("--queries", metavar="1,3,..", help="Some of the 22.")] = "",
) -> Prepared:
    """The 22 queries of TPC-H as stream tables, all at once, all DIFFERENTIAL.

    Data and query texts come from DuckDB's tpch extension, which the package's
    extra "bench" installs; nothing is downloaded. Each share of --change makes
    two rounds: TPC-H's refresh functions alone (orders inserted and deleted
    with their lineitems), and these together with updates of every large table.
    A last round renames nations and regions.

    After each round every stream table is refreshed and timed alone, then
    compared with its query twice: by verify, and by EXCEPT ALL on a plain
    connection. A query that is refused, differs or falls back to FULL is
    reported as a failure; the others go on. The exit code is 1 if there was
    any, and 75 if a step did not end: the same command with the same --home
    then goes on without that query.

      runnel bench tpch --scale 0.01
      runnel bench tpch --scale 1 --home /data/tpch1 --rounds 3 --report tpch.md
      runnel bench tpch --queries 1,6,14 --change 5
    """
    from runnel.bench.tpch import workload

    return f"tpch-{scale:g}", partial(workload, scale, _numbers(queries))


@app.command()
@_workload
def tpcds(
    scale: Annotated[float, typer.Option("--scale", min=0.01, help="Scale factor: 1 is 2.9 million store sales.")] = (
        0.01
    ),
    queries: Annotated[str, typer.Option("--queries", metavar="1,3,..", help="Some of the 99.")] = "",
) -> Prepared:
    """The 99 queries of TPC-DS as stream tables, all at once, all DIFFERENTIAL.

    Data and query texts come from DuckDB's tpcds extension, which the package's
    extra "bench" installs; nothing is downloaded. Each share of --change makes
    two rounds: rows of the fact tables inserted and deleted, and these together
    with updates of the fact tables and the large dimensions. A last round
    changes the small dimensions. Everything else is as in `runnel bench tpch`.

      runnel bench tpcds --queries 1,3,7,98
      runnel bench tpcds --scale 0.1 --home /data/tpcds --report tpcds.md
    """
    from runnel.bench.tpcds import workload

    return f"tpcds-{scale:g}", partial(workload, scale, _numbers(queries))


@app.command()
@_workload
def nexmark(
    events: Annotated[int, typer.Option("--events", min=1000, help="Events to start with: 92 % are bids.")] = 100_000,
    queries: Annotated[str, typer.Option("--queries", metavar="0,3,..", help="Some of q0 to q22.")] = "",
) -> Prepared:
    """The queries of Nexmark, an online auction, as stream tables, all at once, all DIFFERENTIAL.

    Persons, auctions and bids are tables here, and windows of time are groups
    (date_bin). Each share of --change makes two rounds: new events alone, as a
    stream would bring them, and new events together with deleted and updated
    rows. Everything else is as in `runnel bench tpch`.

      runnel bench nexmark
      runnel bench nexmark --events 1000000 --home /data/nexmark --rounds 3 --report nexmark.md
    """
    from runnel.bench.nexmark import workload

    return f"nexmark-{events}", partial(workload, events, _numbers(queries))


@app.command()
def dag(
    runs: Annotated[int, typer.Option("--runs", min=1, help="Rows that are sent through each shape.")] = 20,
    rows: Annotated[int, typer.Option("--rows", min=100, help="Rows in the table to start with.")] = 10_000,
    home: HomeOption = None,
    report: ReportOption = None,
    keep: KeepOption = False,
    master: MasterOption = "local[*]",
) -> None:
    """How long one committed row takes through a chain of 10, 3 levels of 20, and a diamond of stream tables.

    The clock starts when the row is committed and stops when the last stream
    table is. The engine works by itself; nothing is refreshed by hand. At the
    end every stream table is compared with its query.

      runnel bench dag --runs 50 --report dag.md
    """
    from runnel.bench import dag as shapes
    from runnel.bench.run import run_dag

    chosen = (shapes.chain(), shapes.layers(), shapes.diamond())
    if not run_dag(runs=runs, rows=rows, shapes=chosen, report=report, keep=keep, home=home, master=master):
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part.strip().lower().lstrip("q")) for part in text.split(",") if part.strip()]
    except ValueError:
        raise UserError(f"--queries {text}: not a list of numbers", hint="For example: --queries 1,3,18") from None
    return numbers


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        shares = []
    if not shares or not all(0 < share <= 50 for share in shares):
        raise UserError(f"--change {text}: not a list of percentages up to 50", hint="For example: --change 0.1,1")
    return shares
