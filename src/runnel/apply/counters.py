"""Algebraic aggregates: what is counted per group, and how each value follows from the counters.

For aggregate j: `c<j>` counts non-NULL inputs, `s<j>` is their sum, `q<j>` the sum of squares, `x<j>` counts NaNs
(which would poison a running sum), `t<j>` counts true inputs. They are linear: the delta of a counter is the weighted
sum over the delta. `d<i>` counts the distinct values of bag i.

Everything else is PostgreSQL's own aggregate over a bag. That includes sums of floats, covariances and regressions, of
bounded numbers too: PostgreSQL accumulates them in float8, so sums kept exactly would give other digits than it does.

Variance in PostgreSQL's own order of operations, so that NUMERIC rounding agrees:

    (n * q - s * s) / (n * (n - 1))        (population: n * n)
"""

from __future__ import annotations

from collections.abc import Iterator

from runnel.apply.tables import StageTables, same_sql
from runnel.plan.stage import Aggregate, GroupHead


def counter_columns(head: GroupHead) -> list[str]:
    """Names of all counters of a group, in order; every one is a number."""
    names: list[str] = []
    for j, aggregate in enumerate(head.aggregates):
        names += [name for name, _, _ in _counters(j, aggregate)]
    return names + [f"d{i}" for i in range(len(head.bags)) if counts_distinct(head, i)]


def counts_distinct(head: GroupHead, bag: int) -> bool:
    """Whether the groups count the distinct values of a bag."""
    return any(a.bag == bag and a.call is None and a.function == "count" for a in head.aggregates)


def reads_bags(head: GroupHead) -> bool:
    """Whether any value needs more than its group's counters."""
    return any(a.strategy == "bag" and (a.call is not None or a.function != "count") for a in head.aggregates)


def counter_deltas(head: GroupHead) -> list[tuple[str, str]]:
    """(counter, SQL of its delta) over rows with inputs `i<n>`, weight `w` and Spark's partial sums `s<n>`."""
    pairs = []
    for j, aggregate in enumerate(head.aggregates):
        for name, partial, carried in _counters(j, aggregate):
            pairs.append((name, carried if aggregate.partial is None else partial))
    return pairs


def _counters(j: int, aggregate: Aggregate) -> Iterator[tuple[str, str, str]]:
    """(name, delta from partial sums, delta from carried values) per counter."""
    if aggregate.strategy not in ("count", "sum", "bools"):
        return
    base = aggregate.partial or 0
    value = f"i{aggregate.args[0]}" if aggregate.args else "NULL"
    yield f"c{j}", f"sum(s{base})", f"sum(w) FILTER (WHERE {value} IS DISTINCT FROM NULL)"
    if aggregate.strategy == "bools":
        yield f"t{j}", f"sum(s{base + 1})", f"sum(w) FILTER (WHERE {value})"
    if aggregate.strategy != "sum":
        return
    finite = f" FILTER (WHERE {value}::numeric <> 'NaN')" if aggregate.nan else ""
    position = base + 1
    yield f"s{j}", _put_together(position, aggregate.chunks), f"sum(w * {value}::numeric){finite}"
    position += len(aggregate.chunks)
    if aggregate.squares:
        squares = f"sum(w * ({value}::numeric * {value}::numeric)){finite}"
        yield f"q{j}", _put_together(position, aggregate.square_chunks), squares
        position += len(aggregate.square_chunks)
    if aggregate.nan:
        yield f"x{j}", f"sum(s{position})", f"sum(w) FILTER (WHERE {value}::numeric = 'NaN')"


def _put_together(position: int, chunks: tuple[str, ...]) -> str:
    """A sum from the sums of its pieces."""
    if len(chunks) == 1:
        return f"sum(s{position})"
    return "(" + " + ".join(f"sum(s{position + i}) * {factor}" for i, factor in enumerate(chunks)) + ")"


def value_sql(head: GroupHead, j: int, tables: StageTables, g: str) -> str:
    """The value of aggregate j for the group row `g`."""
    aggregate = head.aggregates[j]
    kind = aggregate.type.sql if aggregate.type else ""
    match aggregate.strategy:
        case "rows":
            return f"{g}.n::{kind}"
        case "count":
            return f"{g}.c{j}::{kind}"
        case "bools":
            test = f"{g}.t{j} = {g}.c{j}" if aggregate.function == "bool_and" else f"{g}.t{j} > 0"
            return f"CASE WHEN {g}.c{j} > 0 THEN {test} END"
        case "sum":
            return f"({_sum_value(aggregate, j, g)})::{kind}"
        case "bag":
            return _bag_value(head, j, tables, g)


def _sum_value(aggregate: Aggregate, j: int, g: str) -> str:
    n, s = f"{g}.c{j}", f"{g}.s{j}"
    nan = f"WHEN {g}.x{j} > 0 THEN 'NaN' " if aggregate.nan else ""
    if aggregate.function == "sum":
        return f"CASE WHEN {n} = 0 THEN NULL {nan}ELSE {s} END"
    if aggregate.function == "avg":
        return f"CASE WHEN {n} = 0 THEN NULL {nan}ELSE {s} / {n} END"
    population = aggregate.function.endswith("_pop")
    least, divisor = ("1", f"({n} * {n})") if population else ("2", f"({n} * ({n} - 1))")
    spread = f"({n} * {g}.q{j} - {s} * {s})"
    variance = f"{spread} / {divisor}"
    if aggregate.function.startswith("std"):
        variance = f"round(sqrt({variance}), scale({variance}))"
    # NaN poisons a variance only where the variance is defined at all.
    return f"CASE WHEN {n} < {least} THEN NULL {nan}WHEN {spread} <= 0 THEN 0 ELSE {variance} END"


def _bag_value(head: GroupHead, j: int, tables: StageTables, g: str) -> str:
    aggregate = head.aggregates[j]
    assert aggregate.bag is not None
    if aggregate.call is None and aggregate.function == "count":
        return f"{g}.d{aggregate.bag}::int8"
    keys = [f"k{i}" for i in range(len(head.keys))]
    match_ = same_sql([f"b.{k}" for k in keys], [f"{g}.{k}" for k in keys], head.keys)
    rows = f"{tables.bag(aggregate.bag)} AS b WHERE b.h = {g}.h AND {match_}"
    if aggregate.call is None:
        direction = " DESC" if aggregate.function == "max" else ""
        tie = "" if head.bags[aggregate.bag].types[0].is_plain else ", b.vh"
        return f"(SELECT b.v0 FROM {rows} ORDER BY b.v0{direction}{tie} LIMIT 1)"
    # Floats are added in this order, and ties are broken by it: the same state must give the same value again.
    source = f"(SELECT b.* FROM {rows} ORDER BY b.vh) AS b"
    if not aggregate.distinct:
        source += ", generate_series(1, b.n)"
    return f"(SELECT {aggregate.call} FROM {source})"
