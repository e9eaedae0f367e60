"""Random scenarios: tables, stream tables over them and over each other, and a history."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracle.histories import history
from tests.oracle.joins import Source
from tests.oracle.queries import query
from tests.oracle.scenario import Scenario
from tests.oracle.tables import rows, table
from tests.oracle.values import chance, pick

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@st.composite
def scenarios(draw: st.DrawFn, most_steps: int = 4) -> Scenario:
    """2 to 4 tables, 1 to 3 stream tables, a few steps."""
    tables = [table(draw, f"t{i}") for i in range(draw(st.integers(2, 4)))]
    ddl = [statement for t in tables for statement in t.ddl]
    for each in tables:
        inserted = rows(draw, each, 0, 6)
        if inserted is not None:
            ddl.append(inserted)
    sources = [Source(t.name, t.columns) for t in tables]
    streams: dict[str, str] = {}
    for number in range(draw(st.sampled_from([1, 1, 2, 3]))):
        # Later stream tables mostly read earlier ones: chains and diamonds.
        above = [s for s in sources if s.sql.startswith("s")]
        known = sources + above * 2 if above and chance(draw, 80) else sources
        made = query(draw, known, depth=draw(st.integers(0, 2)), most_joins=4 if not above else 3)
        streams[f"s{number}"] = made.sql
        sources.append(Source(f"s{number}", made.columns))
    return Scenario(ddl, streams, history(draw, tables, most_steps), pick(draw, ZONES))
