"""Random scenarios: tables, stream tables over them and over each other, and a history."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.oracle.histories import history
from tests.oracle.joins import Source
from tests.oracle.queries import query
from tests.oracle.scenario import Scenario, mentions
from tests.oracle.tables import rows, table
from tests.oracle.values import chance, pick

ZONES = ("UTC", "America/New_York", "Asia/Kolkata")


@st.composite
def scenarios(draw: st.DrawFn, most_steps: int = 4) -> Scenario:
    """2 to 4 tables, 1 to 3 stream tables, a few steps."""
    tables = [table(draw, f"t{i}") for i in range(draw(st.integers(2, 4)))]
    sources = [Source(t.name, t.columns) for t in tables]
    views: dict[str, str] = {}
    if chance(draw, 12):
        viewed = query(draw, sources, depth=0, most_joins=2)
        views["v0"] = viewed.sql
        sources.append(Source("v0", viewed.columns))
    streams: dict[str, str] = {}
    for number in range(draw(st.sampled_from([1, 1, 2, 3]))):
        # Later stream tables mostly read earlier ones: chains and diamonds.
        above = [s for s in sources if s.sql.startswith("s")]
        known = sources + above * 2 if above and chance(draw, 80) else sources
        made = query(draw, known, depth=draw(st.integers(0, 2)), most_joins=4 if not above else 3)
        streams[f"s{number}"] = made.sql
        sources.append(Source(f"s{number}", made.columns))
    # A table that nobody reads would only cost time.
    text = " ".join([*views.values(), *streams.values()])
    used = [t for t in tables if mentions(text, t.name)] or tables[:1]
    ddl = [statement for t in used for statement in t.ddl]
    for each in used:
        inserted = rows(draw, each, 0, 6)
        if inserted is not None:
            ddl.append(inserted)
    ddl += [f"CREATE VIEW {name} AS {body}" for name, body in views.items()]
    return Scenario(ddl, streams, history(draw, used, most_steps), pick(draw, ZONES))
