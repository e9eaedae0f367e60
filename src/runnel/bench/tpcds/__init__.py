"""TPC-DS: 24 tables, 99 queries, and changes of the fact tables and the dimensions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from runnel.bench.tpcds import changes
from runnel.bench.tpcds.data import load
from runnel.bench.tpcds.queries import queries
from runnel.bench.workload import Connection, Round, Workload


def workload(scale: float, numbers: Collection[int] = (), shares: Sequence[float] = (0.1, 1.0)) -> Workload:
    """TPC-DS at a scale factor; each share, in percent, makes two rounds of changes."""
    rounds = []
    for share in shares:
        rounds.append(
            Round(
                f"sales {share:g} %",
                f"{share:g} % of the rows of every fact table inserted, as many deleted",
                partial(_sales, share),
            )
        )
        rounds.append(
            Round(
                f"all {share:g} %",
                f"the same, and updates of {share:g} % of the fact tables, customer, customer_address, item, "
                "household_demographics and customer_demographics",
                partial(_every_table, share),
            )
        )
    rounds.append(Round("small", "a row or two of each small dimension, and of date_dim", changes.small, counted=False))
    texts = queries(numbers)
    which = "All 99 queries" if len(texts) == 99 else f"Queries {', '.join(texts)}"
    said = "\n".join(f"- *{r.name}*: {r.about}" for r in rounds)
    about = f"{which} of TPC-DS at scale {scale:g} as stream tables at once, DIFFERENTIAL. Rounds of changes:"
    return Workload(
        title="TPC-DS",
        schema="tpcds",
        data=f"TPC-DS at scale {scale:g}",
        about=f"{about}\n\n{said}",
        load=lambda conn, say: load(conn, scale, say),
        queries=texts,
        rounds=tuple(rounds),
        warm_up=(Round("warm-up", "", partial(_every_table, min(shares))),),
    )


def _sales(share: float, conn: Connection, seed: int) -> None:
    changes.sales(conn, share / 100, seed)


def _every_table(share: float, conn: Connection, seed: int) -> None:
    changes.every_table(conn, share / 100, seed)
