"""Random scenarios: tables, stream tables over them and over each other, and a history."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.oracle.context import Budget, Context, Query, Source
from tests.oracle.histories import history
from tests.oracle.queries import query
from tests.oracle.scenario import Scenario, mentions
from tests.oracle.tables import Table, rows, table
from tests.oracle.values import chance, pick

FILLINGS = ((3, 5), (4, 6), (0, 2), (4, 6), (2, 4))
ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@st.composite
def scenarios(draw: st.DrawFn, most_steps: int = 4) -> Scenario:
    """2 to 4 tables, 1 to 3 stream tables, a few steps."""
    tables = [table(draw, f"t{i}") for i in range(draw(st.integers(2, 4)))]
    sources = [Source(t.name, t.columns, ("id",) if t.keyed else None, "id" if t.keyed else None) for t in tables]
    views: dict[str, str] = {}
    if chance(draw, 12):
        viewed, _ = _query(draw, sources, 1, 2)
        views["v0"] = viewed.sql
        sources.append(Source("v0", viewed.columns, viewed.unique))
    streams: dict[str, str] = {}
    tied: list[str] = []
    for number in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        name = f"s{number}"
        # Later stream tables mostly read earlier ones: chains and diamonds.
        above = [s for s in sources if s.sql.startswith("s")]
        known = sources + above * 2 if above and chance(draw, 80) else sources
        made, is_tied = _query(draw, known, draw(st.sampled_from([0, 1, 2, 3, 3])), 3, ties=chance(draw, 8))
        streams[name] = made.sql
        tied += [name] if is_tied else []
        sources.append(Source(name, made.columns, None if is_tied else made.unique))
    used, ddl = _contents(draw, tables, [*views.values(), *streams.values()])
    ddl += [f"CREATE VIEW {name} AS {body}" for name, body in views.items()]
    steps = history(draw, used, most_steps)
    return Scenario(ddl, streams, steps, pick(draw, ZONES), tied=tuple(tied), twins=chance(draw, 25))


def _query(
    draw: st.DrawFn, sources: Sequence[Source], subqueries: int, most: int, *, ties: bool = False
) -> tuple[Query, bool]:
    budget = Budget(subqueries, ties=ties)
    made = query(Context(draw, sources, budget), most)
    return made, budget.tied


def _contents(draw: st.DrawFn, tables: Sequence[Table], queries: Sequence[str]) -> tuple[list[Table], list[str]]:
    """The tables that are read, since others would only cost time, and what creates and fills them."""
    text = " ".join(queries)
    used = [t for t in tables if mentions(text, t.name)] or list(tables[:1])
    ddl = [statement for t in used for statement in t.ddl]
    for each in used:
        inserted = rows(draw, each, *pick(draw, FILLINGS))
        if inserted is not None:
            ddl.append(inserted)
    return used, ddl
