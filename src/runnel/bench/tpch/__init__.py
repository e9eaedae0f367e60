"""TPC-H: eight tables, 22 queries, and changes of all tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from runnel.bench.tpch import changes
from runnel.bench.tpch.data import load
from runnel.bench.tpch.queries import queries
from runnel.bench.workload import Connection, Round, Workload


def workload(scale: float, numbers: Collection[int] = (), shares: Sequence[float] = (0.1, 1.0)) -> Workload:
    """TPC-H at a scale factor; each share, in percent, makes two rounds of changes."""
    rounds = []
    for share in shares:
        rounds.append(
            Round(
                f"RF {share:g} %",
                f"RF1 and RF2: {share:g} % of the orders inserted, as many deleted, with their lineitems",
                partial(_refresh, share),
            )
        )
        rounds.append(
            Round(
                f"all {share:g} %",
                f"RF1, RF2, and updates of {share:g} % of customer, part, supplier, partsupp, orders and lineitem",
                partial(_every_table, share),
            )
        )
    rounds.append(
        Round(
            "nations",
            "two nations exchange their names, one moves to another region, two regions exchange their names",
            changes.nations,
            counted=False,
        )
    )
    texts = queries(numbers)
    which = "All 22 queries" if len(texts) == 22 else f"Queries {', '.join(texts)}"
    said = "\n".join(f"- *{r.name}*: {r.about}" for r in rounds)
    about = f"{which} of TPC-H at scale {scale:g} as stream tables at once, DIFFERENTIAL. Rounds of changes:"
    return Workload(
        title="TPC-H",
        schema="tpch",
        data=f"TPC-H at scale {scale:g}",
        about=f"{about}\n\n{said}",
        load=lambda conn, say: load(conn, scale, say),
        queries=texts,
        rounds=tuple(rounds),
        warm_up=(
            Round("warm-up RF", "", partial(_refresh, min(shares))),
            Round("warm-up all", "", partial(_every_table, min(shares))),
        ),
    )


def _refresh(share: float, conn: Connection, seed: int) -> None:
    changes.refresh(conn, share / 100, seed)


def _every_table(share: float, conn: Connection, seed: int) -> None:
    changes.every_table(conn, share / 100, seed)
