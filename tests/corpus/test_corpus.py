"""Every case of tests/sql/*.sql, maintained by an engine and compared with PostgreSQL after every change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import runnel
from tests.conftest import running_engine
from tests.corpus.cases import SCHEMA, Case, Topic, load, topics
from tests.corpus.compare import difference
from tests.sampling import sampled
from tests.versions import set_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TWINS = 1
"""So many cases of a file (they are slow) are also kept by a second stream table in mode FULL."""

TWIN = "__full"  # no case's own table ends like this

MARKED = "a source was truncated, its partitions changed"


@dataclass
class Run:
    """One file against one engine. Failures are collected: one wrong case does not hide the others."""

    topic: Topic
    db: psycopg.Connection
    client: runnel.Client
    live: dict[str, Case] = field(default_factory=dict)  # stream table -> its case
    failures: list[str] = field(default_factory=list)

    def create(self) -> None:
        """All cases as stream tables, each in the mode it claims; twins in mode FULL for the first few."""
        self.db.execute(f"CREATE SCHEMA {SCHEMA}".encode())
        for case in self.topic.cases:
            with self.reported(case, "create"):
                self._create(case)
        for case in [case for case in self.live.values() if case.full_because is None][:TWINS]:
            with self.reported(case, "create in mode FULL"):
                twin = f"{case.table}{TWIN}"
                self.client.create_stream_table(twin, case.query, schedule="@yearly", refresh_mode="FULL")
                self.live[twin] = case

    def _create(self, case: Case) -> None:
        if case.error is not None:
            with pytest.raises(runnel.RunnelError) as refused:
                self.client.create_stream_table(case.table, case.query, schedule="@yearly")
            said = f"{refused.value.message} {refused.value.detail or ''} {refused.value.hint or ''}"
            assert case.error in said, f"refused, but with other words: {said}"
            found = self.db.execute("SELECT to_regclass(%s)", (case.table,)).fetchone()
            assert found == (None,), "refused, but the table is there"
            return
        mode = "DIFFERENTIAL" if case.full_because is None else "AUTO"
        self.client.create_stream_table(case.table, case.query, schedule="@yearly", refresh_mode=mode)
        self.live[case.table] = case
        if case.full_because is not None:
            effective, reason = self._catalog(case.table, "effective_mode", "mode_reason")
            assert effective == "FULL", f"is maintained by deltas: remove `mode: FULL` from {self.topic.name}.sql"
            assert case.full_because in (reason or ""), f"is FULL for another reason: {reason}"

    def compare(self, moment: str, *, twins: bool = False) -> None:
        """Every stream table against its query; the FULL twins, which are slow, only if told to."""
        for table, case in list(self.live.items()):
            if table.endswith(TWIN) and not twins:
                continue
            with self.reported(case, moment):
                self._compare(table)

    def _compare(self, table: str) -> None:
        said = self.client.verify(table)
        kind = "the FULL twin" if table.endswith(TWIN) else "the stream table"
        assert said.ok, f"{kind}, by its own account: missing {said.missing[:5]}, unexpected {said.unexpected[:5]}"
        query, uses_clock = self._catalog(table, "defining_query", "uses_clock")
        found = difference(self.db, f"TABLE {table}", query.rstrip(";"))
        if found and uses_clock:
            # A row may have crossed its moment between the refresh and our own look.
            self.client.refresh(table)
            found = difference(self.db, f"TABLE {table}", query.rstrip(";"))
        assert not found, f"{kind} is not what its query says\n{found}"

    def check_history(self) -> None:
        """What claims to be maintained by deltas was: at least once, and never recomputed but for a TRUNCATE."""
        for table, case in self.live.items():
            if case.full_because is not None or table.endswith(TWIN):
                continue
            with self.reported(case, "history"):
                rows = self.db.execute(
                    "SELECT h.action, h.reason FROM pgtrickle.pgt_refresh_history h "
                    "JOIN pgtrickle.pgt_stream_tables t USING (pgt_id) "
                    "WHERE t.pgt_relid = %s::regclass AND h.status = 'COMPLETED'",
                    (table,),
                ).fetchall()
                actions = [action for action, _ in rows]
                assert "DIFFERENTIAL" in actions, f"never refreshed by a delta: {actions}"
                other = [row for row in rows if row[0] in ("FULL", "REINITIALIZE") and MARKED not in (row[1] or "")]
                assert not other, f"recomputed: {other}"

    def _catalog(self, table: str, *columns: str) -> tuple[str, ...]:
        row = self.db.execute(
            f"SELECT {', '.join(columns)} FROM pgtrickle.pgt_stream_tables WHERE pgt_relid = %s::regclass".encode(),
            (table,),
        ).fetchone()
        assert row is not None, f"{table} is not in the catalog"
        return row

    @contextlib.contextmanager
    def reported(self, case: Case, moment: str) -> Iterator[None]:
        """What goes wrong inside is noted under file, case and moment; the case takes no further part."""
        try:
            yield
        except (AssertionError, pytest.fail.Exception, runnel.RunnelError, psycopg.Error) as error:
            said = f"{error}\n{getattr(error, 'detail', None) or ''}".strip()
            self.failures.append(f"{self.topic.name}.sql:{case.line}: {case.name} [{moment}]\n  {said}")
            self.live = {table: other for table, other in self.live.items() if other is not case}


@pytest.mark.parametrize("path", sampled(topics(), every=60), ids=lambda path: path.stem)
def test_corpus(path: Path, dsn: str, spark: SparkSession) -> None:
    _run(path, dsn, spark)


@pytest.mark.slow
@pytest.mark.parametrize("path", list(topics())[3::48], ids=lambda path: path.stem)
def test_corpus_by_tasks(path: Path, dsn: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the same with the line between small and large at one row (RUNNEL_TEST_TASKS_ABOVE=1: all of it)."""
    monkeypatch.setattr("runnel.spark.session.Sessions.threshold", 1)
    _run(path, dsn, spark)


def _run(path: Path, dsn: str, spark: SparkSession) -> None:
    topic = load(path)
    with (
        running_engine(dsn, spark),
        psycopg.connect(dsn, autocommit=True) as db,
        contextlib.closing(runnel.connect(dsn)) as client,
    ):
        topic = set_up(db, topic)
        run = Run(topic, db, client)
        run.create()
        run.compare("as created", twins=True)
        for change in topic.changes:
            db.execute(change.sql.encode())
            last = change is topic.changes[-1]
            run.compare(f"after change in line {change.line}: {change.title}", twins=last)
        run.check_history()
    assert not run.failures, "\n\n".join(["", *run.failures])
