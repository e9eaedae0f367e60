"""How long one committed row takes through many stream tables.

Three shapes over a table of groups. All stream tables have the schedule `1s`, which is the least time between two
refreshes: a row that comes after a quiet second is carried at once, and that is what is measured. The clock starts
after the COMMIT and stops when the last stream table of the shape has been refreshed and committed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runnel.bench.measure import Wrong
from runnel.bench.report import Grid, ms
from runnel.bench.workload import Connection
from runnel.client import Client

SCHEMA = "dag"

_BASE = """
DROP SCHEMA IF EXISTS dag CASCADE;
CREATE SCHEMA dag;
CREATE TABLE dag.base (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, grp int NOT NULL, amount bigint NOT NULL);
INSERT INTO dag.base (grp, amount) SELECT i % 100, i FROM generate_series(1, {rows}) i;
CREATE INDEX ON dag.base (grp);
ANALYZE dag.base;
"""

_MOVED = """
SELECT count(*) FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = 'dag' AND version > (%s::jsonb ->> pgt_name)::int8
"""

_SPENT = """
SELECT coalesce(sum(h.spark_jobs), 0)::int8, count(*) FILTER (WHERE h.action <> 'DIFFERENTIAL')
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables t USING (pgt_id)
WHERE t.pgt_schema = 'dag' AND h.refresh_id > %s
"""

_PER_GROUP = "SELECT grp, sum(amount) AS total, count(*) AS n FROM dag.base GROUP BY grp"


@dataclass(frozen=True, slots=True)
class Shape:
    """Stream tables over `dag.base`, sources before their readers."""

    name: str
    about: str
    tables: dict[str, str]
    published: float
    """Seconds that pg_trickle's authors report for this shape."""


@dataclass
class Travel:
    """What one shape's runs took."""

    shape: Shape
    seconds: list[float] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)


def chain(length: int = 10) -> Shape:
    """Each stream table reads the one before it."""
    tables = {"c01": _PER_GROUP}
    for i in range(2, length + 1):
        before = f"dag.c{i - 1:02d}"
        tables[f"c{i:02d}"] = f"SELECT grp, total + 1 AS total, n FROM {before}"
    return Shape(f"chain of {length}", "each stream table reads the one before it", tables, 0.82)


def layers(depth: int = 3, width: int = 20) -> Shape:
    """Independent columns: every change concerns all of them."""
    tables = {}
    for column in range(1, width + 1):
        tables[f"l1_{column:02d}"] = (
            f"SELECT grp, sum(amount + {column}) AS total, count(*) AS n FROM dag.base GROUP BY grp"
        )
        for level in range(2, depth + 1):
            before = f"dag.l{level - 1}_{column:02d}"
            tables[f"l{level}_{column:02d}"] = f"SELECT grp, total + {column} AS total, n FROM {before}"
    ordered = dict(sorted(tables.items()))
    about = f"{depth} levels of {width} stream tables, every one changed by every row"
    return Shape(f"{depth} levels x {width}", about, ordered, 2.4)


def diamond() -> Shape:
    """Two arms over one stream table, and one that joins them."""
    return Shape(
        "diamond",
        "two arms over one stream table, joined by a fourth",
        {
            "top": _PER_GROUP,
            "left_arm": "SELECT grp, total * 2 AS doubled FROM dag.top",
            "right_arm": "SELECT grp, n + 1 AS more FROM dag.top",
            "tip": "SELECT l.grp, l.doubled, r.more FROM dag.left_arm l JOIN dag.right_arm r ON r.grp = l.grp",
        },
        0.2,
    )


def travel(
    client: Client,
    conn: Connection,
    shape: Shape,
    *,
    runs: int = 20,
    warm: int = 3,
    rows: int = 10_000,
    step: Callable[[str], None] = lambda _: None,
) -> Travel:
    """Create the shape, send rows through it one at a time, compare everything with PostgreSQL, and remove it."""
    conn.execute(_BASE.format(rows=rows).encode())
    for name, query in shape.tables.items():
        step(f"{shape.name}: create {name}")
        client.create_stream_table(f"{SCHEMA}.{name}", query, "1s", "DIFFERENTIAL")
    result = Travel(shape)
    chance = random.Random(runs)
    for number in range(warm + runs):
        step(f"{shape.name}: run {number + 1 - warm}" if number >= warm else f"{shape.name}: warm-up")
        # Past the last refresh's second, at no particular moment of the engine's own rhythm.
        time.sleep(1.1 + chance.random() / 2)
        seconds, jobs = _once(conn, shape, grp=number % 100)
        if number >= warm:
            result.seconds.append(seconds)
            result.jobs.append(jobs)
    for name in shape.tables:
        step(f"{shape.name}: compare {name}")
        told = client.verify(f"{SCHEMA}.{name}")
        if not told.ok:
            raise Wrong(f"{name}: missing {list(told.missing[:3])}, unexpected {list(told.unexpected[:3])}")
    for name in reversed(shape.tables):
        client.drop_stream_table(f"{SCHEMA}.{name}")
    return result


def open_chain(client: Client, conn: Connection, *, rows: int = 10_000) -> list[str]:
    """A chain that nobody refreshes by schedule; its stream tables in order."""
    conn.execute(_BASE.format(rows=rows).encode())
    for name, query in chain().tables.items():
        client.create_stream_table(f"{SCHEMA}.{name}", query, "@yearly", "DIFFERENTIAL")
    return [f"{SCHEMA}.{name}" for name in chain().tables]


def _once(conn: Connection, shape: Shape, grp: int, patience: float = 120.0) -> tuple[float, int]:
    """Seconds until every stream table has moved, and the Spark jobs of all refreshes meanwhile."""
    row = conn.execute(
        "SELECT jsonb_object_agg(pgt_name, version)::text, (SELECT max(refresh_id) FROM pgtrickle.pgt_refresh_history) "
        "FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = 'dag'"
    ).fetchone()
    assert row is not None
    versions, last = row
    conn.execute("INSERT INTO dag.base (grp, amount) VALUES (%s, 7)", (grp,))
    began = time.perf_counter()
    while True:
        moved = conn.execute(_MOVED, (versions,)).fetchone()
        now = time.perf_counter()
        if moved is not None and moved[0] == len(shape.tables):
            break
        if now - began > patience:
            raise Wrong(f"{shape.name}: {moved[0] if moved else 0} of {len(shape.tables)} moved in {patience:.0f} s")
        time.sleep(0.003)
    spent = conn.execute(_SPENT, (last,)).fetchone()
    assert spent is not None
    if spent[1]:
        raise Wrong(f"{shape.name}: {spent[1]} refreshes were not DIFFERENTIAL")
    return now - began, int(spent[0])


def grid(found: Sequence[Travel]) -> Grid:
    """One line per shape."""
    rows = []
    for each in found:
        ordered = sorted(each.seconds)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        rows.append(
            [
                f"{each.shape.name} ({len(each.shape.tables)} stream tables)",
                ms(1000 * ordered[len(ordered) // 2]),
                ms(1000 * p95),
                ms(1000 * ordered[-1]),
                str(len(ordered)),
                f"{sorted(each.jobs)[len(each.jobs) // 2]}",
                f"{each.shape.published:g} s",
            ]
        )
    about = (
        "From the commit of one inserted row until the last stream table is committed, and the Spark jobs of all "
        "refreshes on the way (median). The last column is what the authors of pg_trickle publish for "
        "this shape, on their machine."
    )
    columns = ("shape", "p50", "p95", "longest", "runs", "Spark jobs", "pg_trickle")
    return Grid("Propagation", about, columns, rows)
