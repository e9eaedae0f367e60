"""Into how many slices an input is cut: as PostgreSQL's planner finds cheapest.

A slice reads its share of one input, and all of the others. Where the others are small that costs nothing; where each
slice would hash millions of rows again, or where an index finds the few rows that a join wants, the SELECT as a whole
is cheaper than its slices together. The planner knows: it is asked for the cost of the whole and of one slice.

    whole 100, one of two slices 60, one of eight 20; two tasks run side by side

    two slices are 120 of work in 60 of time; eight would be 160 in 80: two it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.catalog.owner import AsOwner
from runnel.ports.rows import Query

ONE_CORE = {"max_parallel_workers_per_gather": "0"}
"""Tasks are side by side already."""

_MOST_WORK = 1.5
"""Slices together may cost so many times what the whole does: others use the server, too."""

_WORTH_A_FINER_CUT = 1.2
"""More slices keep tasks evenly busy: they are taken if they take at most so many times as long as the fastest cut."""


def cheapest_cut(costs: Mapping[int, float], tasks: int) -> int:
    """A number of slices, given for some of them, and for 1, what one of so many costs.

    >>> cheapest_cut({1: 100.0, 2: 60.0, 8: 20.0}, 2)
    2
    >>> cheapest_cut({1: 100.0, 2: 50.0, 8: 13.0}, 2)
    8
    >>> cheapest_cut({1: 100.0, 2: 99.0, 8: 98.0}, 2)  # an index finds few rows
    1
    """
    work = {count: cost * count for count, cost in costs.items()}
    times = {n: each / min(n, tasks) for n, each in work.items() if each <= work[1] * _MOST_WORK}
    fastest = min(times.values())
    return max(count for count, time in times.items() if time <= fastest * _WORTH_A_FINER_CUT)


def planned_rows(owner: AsOwner, query: Query) -> float:
    """How many rows PostgreSQL expects of a SELECT."""
    text = f"EXPLAIN (FORMAT JSON) {owner.merged(query.text, query.params or {'none': None})}"
    ((plan,),) = owner.rows(text, ["json"], writes=True)
    return float(plan[0]["Plan"]["Plan Rows"])


def planned_costs(owner: AsOwner, queries: Sequence[Query]) -> list[float]:
    """What PostgreSQL expects SELECTs to cost on one core. Planning may run functions, so it has the owner's rights."""
    alone = owner.under({**owner.settings, **ONE_CORE})
    alone.pin()
    costs = []
    for query in queries:
        text = f"EXPLAIN (FORMAT JSON) {owner.merged(query.text, query.params or {'none': None})}"
        ((plan,),) = alone.rows(text, ["json"], writes=True)
        costs.append(float(plan[0]["Plan"]["Total Cost"]))
    for name in ONE_CORE:
        owner.conn.execute(f"RESET {name}".encode())
    return costs
