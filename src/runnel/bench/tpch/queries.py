"""The 22 queries, as DuckDB prints them, with what PostgreSQL asks to be different."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runnel.bench.generator import generator

ADAPTED: Mapping[int, tuple[tuple[str, str], ...]] = {
    # A column of a stream table deserves a name of its own, not that of the function that made it.
    18: (("sum(l_quantity)\nFROM", "sum(l_quantity) AS sum_qty\nFROM"),),
}
"""Per query: what is replaced by what, once. Everything else, ORDER BY and LIMIT included, is as the benchmark has it.

DuckDB's texts are PostgreSQL's SQL already: dates are written with their types, and Q15 is in the form with a CTE,
which the specification allows in place of its view.
"""


def queries(numbers: Collection[int] = ()) -> dict[str, str]:
    """The texts by the name of their stream table (`q01` .. `q22`); all of them unless some are asked for."""
    with generator("tpch") as duck:
        texts = duck.execute("SELECT query_nr, query FROM tpch_queries() ORDER BY 1").fetchall()
    return {f"q{nr:02d}": _adapted(nr, text) for nr, text in texts if not numbers or nr in numbers}


def _adapted(number: int, text: str) -> str:
    for before, after in ADAPTED.get(number, ()):
        if text.count(before) != 1:
            raise ValueError(f"Q{number} has changed: {before!r} should be in it once")
        text = text.replace(before, after)
    return text.strip().rstrip(";")
