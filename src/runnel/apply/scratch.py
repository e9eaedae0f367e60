"""The temporary tables of refreshes: made once per session, emptied before they are used again.

ON COMMIT DELETE ROWS would be simpler, but PostgreSQL then empties all such tables of the session at every commit: with
a hundred stream tables each commit would cost as much as the refresh. So rows stay until the same stream table is
refreshed again, and only the tables that were used are emptied. Nothing vacuums a temporary table; deleted rows are
counted, and when there are many the table is truncated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import psycopg

from runnel.apply.heads import temporary_of
from runnel.apply.load import load_columns, raw_columns
from runnel.apply.output import output_columns
from runnel.apply.tables import StageTables, TableSpec, typed
from runnel.catalog.owner import mark_session
from runnel.catalog.temporary import drop_temporary
from runnel.model.names import quote
from runnel.plan.stage import Stage

_TRUNCATE_AFTER = 5_000
TEMPORARY = re.compile(r"pgt_(?:load|raw|delta|touched|b|walk)_(\d+)_")
"""Names of temporary tables; the number is the stream table's."""

Places = Sequence[tuple[Stage, StageTables]]


@dataclass
class Scratch:
    """The temporary tables of one session."""

    _made: dict[int, object] = field(default_factory=dict)
    """Per stream table the shape of its stages, for which its tables were made."""
    _used: dict[int, set[int]] = field(default_factory=dict)
    """Per stream table the stages whose tables may hold rows."""
    _many: dict[int, set[int]] = field(default_factory=dict)
    """Per stream table those whose tables may hold many."""
    _dead: dict[str, int] = field(default_factory=dict)
    """Rows deleted from a table since it was last truncated."""

    def prepare(self, conn: psycopg.Connection, pgt_id: int, places: Places, owner: str) -> None:
        """Make a stream table's temporary tables, or empty those that were used."""
        shape = tuple(stage for stage, _ in places)
        if self._made.get(pgt_id) == shape:
            used, many = self._used.get(pgt_id, set()), self._many.pop(pgt_id, set())
            self._truncate(conn, [n for stage, tables in places if stage.index in many for n in _specs(stage, tables)])
            few = used - many
            self._empty(conn, [n for stage, tables in places if stage.index in few for n in _specs(stage, tables)])
        else:
            mark_session(conn)
            self._drop(conn, lambda id_: id_ != pgt_id)
            for stage, tables in places:
                # The engine owns them, not the table's owner, whose DROP OWNED would take them from a running session.
                _create(conn, stage, tables, owner)
            self._made[pgt_id] = shape
        self._used[pgt_id] = set()

    def use(self, pgt_id: int, stages: Iterable[int]) -> None:
        """Remember that tables of these stages are about to be filled."""
        self._used.setdefault(pgt_id, set()).update(stages)

    def use_for_many(self, pgt_id: int, stage: int) -> None:
        """Remember that many rows go there: to delete them one by one would take as long as to write them."""
        self._many.setdefault(pgt_id, set()).add(stage)

    def keep_only(self, conn: psycopg.Connection, tables: Container[int]) -> None:
        """Drop the temporary tables of all other stream tables: they were dropped, or have another plan now."""
        self._drop(conn, tables.__contains__)
        for pgt_id in [i for i in self._made if i not in tables]:
            del self._made[pgt_id]
            self._used.pop(pgt_id, None)
            self._many.pop(pgt_id, None)

    def _drop(self, conn: psycopg.Connection, keep: Callable[[int], bool]) -> None:
        for name in drop_temporary(conn, TEMPORARY, keep):
            self._dead.pop(f"pg_temp.{quote(name)}", None)

    def forget(self) -> None:
        """The session is gone, or was rolled back to before its tables were made."""
        self._made.clear()
        self._used.clear()
        self._many.clear()
        self._dead.clear()

    def _empty(self, conn: psycopg.Connection, names: list[str]) -> None:
        if not names:
            return
        deletes = ", ".join(f"d{i} AS (DELETE FROM {name} RETURNING 1)" for i, name in enumerate(names))
        counts = ", ".join(f"(SELECT count(*) FROM d{i})" for i in range(len(names)))
        row = conn.execute(f"WITH {deletes} SELECT {counts}".encode()).fetchone()
        assert row is not None
        for name, deleted in zip(names, row, strict=True):
            self._dead[name] = self._dead.get(name, 0) + deleted
        self._truncate(conn, [n for n in names if self._dead[n] > _TRUNCATE_AFTER])

    def _truncate(self, conn: psycopg.Connection, names: list[str]) -> None:
        if names:
            conn.execute(f"TRUNCATE {', '.join(names)}".encode())
            self._dead.update(dict.fromkeys(names, 0))


def _specs(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The temporary tables of a stage: those of every stage, and those of its head."""
    raw = raw_columns(stage)
    outputs = [typed(n, t, c.collation) for (n, t), c in zip(output_columns(stage), stage.columns, strict=True)]
    return {
        tables.load: TableSpec([definition for _, definition in load_columns(stage)]),
        **({tables.raw: TableSpec(raw)} if raw else {}),
        tables.delta: TableSpec([*outputs, "w int8"]),
        **temporary_of(stage, tables),
    }


def _create(conn: psycopg.Connection, stage: Stage, tables: StageTables, owner: str) -> None:
    for name, spec in _specs(stage, tables).items():
        conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
        conn.execute(f"CREATE TEMP TABLE {name.removeprefix('pg_temp.')} ({', '.join(spec.columns)})".encode())
        for columns in spec.indexes:
            conn.execute(f"CREATE INDEX ON {name} ({columns})".encode())
        # Not more: a trigger or an ANALYZE of the owner's would run with the rights of whoever touches the table.
        conn.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quote(owner)}".encode())
