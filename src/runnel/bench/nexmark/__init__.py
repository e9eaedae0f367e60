"""Nexmark: an online auction with persons, auctions and bids, and 23 queries about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib import resources

from runnel.bench.nexmark.events import corrections, events, more_events
from runnel.bench.nexmark.queries import QUERIES
from runnel.bench.workload import Connection, Round, Workload


def workload(number: int, chosen: Collection[int] = (), shares: Sequence[float] = (0.1, 1.0)) -> Workload:
    """Nexmark over this many events; each share, in percent, makes two rounds of changes."""
    rounds = []
    for share in shares:
        rounds.append(Round(f"new {share:g} %", f"{share:g} % more events", partial(_append, share)))
        rounds.append(
            Round(
                f"all {share:g} %",
                f"{share:g} % more events, {share:g} % of the bids deleted, "
                f"{share:g} % of bids, auctions, persons and the side input updated",
                partial(_mixed, share),
            )
        )
    texts = {name: text for name, text in QUERIES.items() if not chosen or int(name[1:3]) in chosen}
    which = f"All {len(QUERIES)} queries" if len(texts) == len(QUERIES) else f"Queries {', '.join(texts)}"
    said = "\n".join(f"- *{r.name}*: {r.about}" for r in rounds)
    about = f"{which} of Nexmark over {number:,} events as stream tables at once, DIFFERENTIAL. Rounds of changes:"
    return Workload(
        title="Nexmark",
        schema="nexmark",
        data=f"Nexmark with {number} events",
        about=f"{about}\n\n{said}",
        load=partial(_load, number),
        queries=texts,
        rounds=tuple(rounds),
        warm_up=(
            Round("warm-up new", "", partial(_append, min(shares))),
            Round("warm-up all", "", partial(_mixed, min(shares))),
        ),
    )


def _load(number: int, conn: Connection, say: Callable[[str], None]) -> None:
    conn.execute(resources.files("runnel.bench.nexmark").joinpath("tables.sql").read_bytes())
    events(conn, 0, number - 1)
    say(f"Nexmark: {number:,} events")


def _append(share: float, conn: Connection, seed: int) -> None:
    more_events(conn, share / 100)


def _mixed(share: float, conn: Connection, seed: int) -> None:
    more_events(conn, share / 100)
    corrections(conn, share / 100, seed)
