"""The 99 queries, as DuckDB prints them. They are PostgreSQL's SQL already: not one text is changed."""

from __future__ import annotations

from collections.abc import Collection

from runnel.bench.generator import generator


def queries(numbers: Collection[int] = ()) -> dict[str, str]:
    """The texts by the name of their stream table (`q01` .. `q99`); all of them unless some are asked for."""
    with generator("tpcds") as duck:
        texts = duck.execute("SELECT query_nr, query FROM tpcds_queries() ORDER BY 1").fetchall()
    return {f"q{nr:02d}": text.strip().rstrip(";") for nr, text in texts if not numbers or nr in numbers}
