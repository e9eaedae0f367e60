"""How much a process grows while it publishes: `python -m tests.lake.memory <dsn> <folder> <case> <rows>`.

Prints one JSON object: per step the megabytes above what the process had before it. It publishes as an engine would, in
one transaction per step, without Spark: the changes are not committed, so they pass this process.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil

from tests.ports.sinks import CASES, Rig, rig

COLUMNS = "k int, price numeric(12,2), moment timestamptz, note text"
ROWS = """
INSERT INTO delta SELECT i, 'name ' || md5(i::text), i % 1000, i * 0.01, timestamptz '2024-01-01' + i * interval '1 s',
    CASE WHEN i % 7 > 0 THEN md5((i * 7)::text) || md5((i * 3)::text) END, 1
FROM generate_series({}, {}) i
"""
ADD = "INSERT INTO public.t SELECT o0, o1, o2, o3, o4, o5 FROM delta WHERE w > 0"
STEPS = {
    "update": (
        "INSERT INTO delta SELECT *, -1 FROM public.t WHERE id % 3 > 0",
        "INSERT INTO delta SELECT id, name, k + 1, price, moment, note, 1 FROM public.t WHERE id % 3 > 0",
        "UPDATE public.t SET k = k + 1 WHERE id % 3 > 0",
    ),
    "delete": (
        "INSERT INTO delta SELECT *, -1 FROM public.t WHERE id % 10 > 0",
        "DELETE FROM public.t WHERE id % 10 > 0",
    ),
    "delete more": (
        "INSERT INTO delta SELECT *, -1 FROM public.t WHERE id % 20 > 0",
        "DELETE FROM public.t WHERE id % 20 > 0",
    ),
}


@contextmanager
def growth(found: dict[str, float], step: str) -> Iterator[None]:
    """The most that this process had above what it has now."""
    process, done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss

    def look() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()
        found[step] = round((peak - before) / 2**20, 1)


def publish(made: Rig, found: dict[str, float], step: str, *statements: str) -> None:
    """Change the stream table and publish that."""
    with made.transaction() as publication:
        result = made.result()
        publication.prepare(result)
        for statement in ("TRUNCATE delta", *statements, "ANALYZE delta"):
            made.conn.execute(statement.encode())
        row = made.conn.execute(
            "SELECT coalesce(sum(w) FILTER (WHERE w > 0), 0)::int8, coalesce(-sum(w) FILTER (WHERE w < 0), 0)::int8 "
            "FROM delta"
        ).fetchone()
        assert row is not None
        with growth(found, step):
            publication.publish(result, made.refreshed(*row, "DIFFERENTIAL"))


def main(dsn: str, folder: str, case: str, rows: int) -> None:
    chosen = next(each for each in CASES if each.name == case)
    found: dict[str, float] = {}
    with rig(chosen, dsn, Path(folder), cast(Any, SimpleNamespace(threshold=100_000))) as made:
        for table, names in (("public.t", COLUMNS), ("delta", "o2 int, o3 numeric(12,2), o4 timestamptz, o5 text")):
            for column in names.replace("(12,2)", "(12;2)").split(", "):
                made.conn.execute(f"ALTER TABLE {table} ADD COLUMN {column.replace(';', ',')}".encode())
        made.conn.execute("ALTER TABLE delta DROP COLUMN w, ADD COLUMN w int8")
        made.define()
        # The first rows load what every publication needs.
        publish(made, found, "first", ROWS.format(1, 50_000), ADD)
        publish(made, found, "insert", ROWS.format(50_001, rows), ADD)
        for step, statements in STEPS.items():
            publish(made, found, step, *statements)
        check = "SELECT count(*), sum(id), sum(k), count(note) FROM {}"
        if chosen.in_lake:
            theirs, ours = made.duck.rows(check.format("t")), made.conn.execute(check.format("public.t").encode())
            assert theirs == ours.fetchall()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
