"""What a demo shows at one moment: stream tables, the lake, and the answers to everybody's questions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from runnel.client import Client, StreamTableStatus
from runnel.demo.analyst import Analyst, Answer
from runnel.demo.story import Story

_CHANGES_READ: LiteralString = """
SELECT t.pgt_name AS name, count(*) AS refreshes, coalesce(sum(h.changes_read), 0)::bigint AS changes
FROM pgtrickle.pgt_stream_tables t
JOIN pgtrickle.pgt_refresh_history h USING (pgt_id)
WHERE h.status = 'COMPLETED' AND h.action <> 'INITIAL'
GROUP BY t.pgt_name
"""

_LAKE: LiteralString = """
SELECT (SELECT max(snapshot_id) FROM ducklake.ducklake_snapshot) AS snapshot, count(*) AS files,
       coalesce(sum(file_size_bytes), 0)::bigint AS bytes
FROM ducklake.ducklake_data_file WHERE end_snapshot IS NULL
"""


@dataclass(frozen=True, slots=True)
class LakeState:
    """The lake as its catalog has it."""

    snapshot: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class View:
    """One moment of a demo."""

    tables: Sequence[StreamTableStatus]
    refreshes: Mapping[str, int]
    changes_read: Mapping[str, int]
    answers: Mapping[str, Answer]
    lake: LakeState
    waits: tuple[int, float, float]
    """Commit to visible in the lake: how many were seen, and p50 and p95 of it in seconds."""


def look(story: Story, client: Client, analyst: Analyst) -> View:
    """Ask the database, as a dashboard would: the stream tables are ordinary tables. DuckDB asks on its own."""
    read = client.query(_CHANGES_READ)
    waits = analyst.waits
    return View(
        tables=client.status(),
        refreshes={row["name"]: row["refreshes"] for row in read},
        changes_read={row["name"]: row["changes"] for row in read},
        answers={**_ask_postgres(story, client), **analyst.answers},
        lake=LakeState(**client.query(_LAKE)[0]),
        waits=(len(waits.seconds), waits.percentile(0.5), waits.percentile(0.95)),
    )


def _ask_postgres(story: Story, client: Client) -> dict[str, Answer]:
    answers = {}
    for question in story.questions:
        if question.asked_in == "PostgreSQL":
            began = time.perf_counter()
            rows = client.query(question.query)
            answers[question.title] = Answer(rows, (time.perf_counter() - began) * 1000, question.query)
    return answers
