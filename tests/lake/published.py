"""A stream table that is published, and everything that must be true of it in the lake after a refresh."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg

import runnel
from tests.lake.compare import Bag, assert_equal, delta, duck_bag, duck_weights, pg_bag
from tests.lake.duck import Duck
from tests.lake.health import assert_counts_right

LATEST = "SELECT max(ducklake_snapshot_id) FROM pgtrickle.pgt_ducklake_provenance WHERE stream_table_name = %s"
OF_ACTION = "CASE __action WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 END"
OF_CHANGE = "CASE WHEN change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"


@dataclass
class Published:
    """One stream table with a sink, and what PostgreSQL held at each of its snapshots."""

    name: str
    mode: str
    conn: psycopg.Connection[Any]
    history: list[tuple[int, Bag]] = field(default_factory=list)

    @property
    def table(self) -> str:
        """Where its rows are in the lake."""
        return f"{self.name}__{'log' if self.mode == 'append' else 'rows'}"

    @property
    def rows(self) -> Bag:
        return self.history[-1][1] if self.history else Bag()

    def observe(self, duck: Duck) -> None:
        """After a refresh: DuckDB shows what PostgreSQL shows, and the change feed how it came to that."""
        now = pg_bag(self.conn, self.name)
        assert_equal(duck_bag(self.conn, duck, self.name), now, f"{self.name} ({self.mode})")
        found = self.conn.execute(LATEST, (self.name,)).fetchone()
        assert found is not None
        (snapshot,) = found
        assert snapshot is not None, f"{self.name}: nothing was recorded in pgt_ducklake_provenance"
        if self.history and snapshot == self.history[-1][0]:
            assert now == self.rows, f"{self.name} has changed in PostgreSQL without a snapshot"
            return
        self._check_feed(duck, snapshot, delta(self.rows, now))
        self.history.append((snapshot, now))

    def check_history(self, duck: Duck, others: list[int] = []) -> int:  # noqa: B006  (never changed)
        """Every snapshot still shows what PostgreSQL held then, also at `others` in between."""
        checked = 0
        for snapshot in sorted({s for s, _ in self.history} | {s for s in others if s >= self.history[0][0]}):
            _, then = max((s, i) for i, (s, _) in enumerate(self.history) if s <= snapshot)
            self._check_travel(duck, snapshot, self.history[then][1])
            checked += 1
        assert_counts_right(duck, self.table)
        return checked

    def check_provenance(self, lake_schema: str = "ducklake") -> int:
        """Each snapshot says which refresh made it, and the catalog agrees."""
        made = self.conn.execute(
            f"""
            SELECT p.ducklake_snapshot_id, p.refresh_id, p.delta_row_count, h.rows_inserted + h.rows_deleted, h.status,
                   c.author, c.commit_message, c.commit_extra_info, p.stream_table_oid = %(name)s::text::regclass,
                   p.written_at BETWEEN h.start_time AND h.end_time
            FROM pgtrickle.pgt_ducklake_provenance p LEFT JOIN pgtrickle.pgt_refresh_history h USING (refresh_id)
            LEFT JOIN {lake_schema}.ducklake_snapshot_changes c ON c.snapshot_id = p.ducklake_snapshot_id
            WHERE p.stream_table_name = %(name)s::text ORDER BY 1""".encode(),
            {"name": self.name},
        ).fetchall()
        assert [row[0] for row in made] == [s for s, _ in self.history], f"{self.name}: snapshots and provenance"
        assert len({row[1] for row in made}) == len(made), f"{self.name}: a refresh was published twice"
        for snapshot, refresh, count, changed, status, author, message, extra, same, within in made:
            where = f"{self.name}, snapshot {snapshot}"
            assert status == "COMPLETED", where
            assert (count, same, within) == (changed, True, True), where
            assert author == f"pg_trickle/{runnel.__version__}/stream_table/{self.name}/{refresh}", where
            assert message, where
            assert json.loads(extra)["refresh_id"] == refresh, where
            assert json.loads(extra)["frontier"], where
        return len(made)

    def _check_feed(self, duck: Duck, snapshot: int, expected: Bag) -> None:
        where = f"{self.name} ({self.mode}), changes of snapshot {snapshot}"
        feed = f"table_changes('{self.table}', {snapshot}, {snapshot})"
        if self.mode == "append":
            assert not duck.value(f"SELECT count(*) FROM {feed} WHERE change_type <> 'insert'"), where
            assert_equal(duck_weights(self.conn, duck, self.name, feed, OF_ACTION), expected, where)
        else:
            assert_equal(duck_weights(self.conn, duck, self.name, feed, OF_CHANGE), expected, where)
        if self.mode != "replace":
            assert duck.value(f"SELECT count(*) FROM {feed}") == sum(abs(n) for n in expected.values()), where

    def _check_travel(self, duck: Duck, snapshot: int, expected: Bag) -> None:
        where = f"{self.name} ({self.mode}) at snapshot {snapshot}"
        source = f"{self.table} AT (VERSION => {snapshot})"
        if self.mode == "append":
            assert_equal(duck_weights(self.conn, duck, self.name, source, OF_ACTION), expected, where)
        else:
            assert_equal(duck_bag(self.conn, duck, self.name, source), expected, where)
