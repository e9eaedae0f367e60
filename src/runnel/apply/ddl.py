"""Create and drop the tables of a stage."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from runnel.apply.heads import state_of
from runnel.apply.output import table_hash
from runnel.apply.partitions import key_hash
from runnel.apply.tables import StageTables, typed
from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan.stage import Stage


def create_state(conn: psycopg.Connection, stage: Stage, tables: StageTables, owner: str, *, is_last: bool) -> None:
    """The stage's permanent tables except the stream table itself, empty and without indexes.

    They belong to the engine; the stream table's owner may only change their rows.
    """
    drop_state(conn, stage, tables, is_last=is_last)
    for name, spec in state_of(stage, tables).items():
        _create(conn, name, spec.columns, owner)
    if not is_last:
        _create(conn, tables.output, [typed(quote(c.name), c.type, c.collation) for c in stage.columns], owner)


def _create(conn: psycopg.Connection, name: str, columns: Sequence[str], owner: str) -> None:
    conn.execute(f"CREATE TABLE {name} ({', '.join(columns)})".encode())
    conn.execute("SELECT pgtrickle._without_statistics(%s::regclass)", (name,))
    # No key, so a publication FOR ALL TABLES would forbid updates; it costs nothing unless changes are decoded.
    conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
    conn.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quote(owner)}".encode())


def index_state(conn: psycopg.Connection, stage: Stage, tables: StageTables) -> None:
    """Indexes, after a bulk load; and statistics, so that merges are planned for the real size."""
    for name, spec in state_of(stage, tables).items():
        for columns in spec.indexes:
            conn.execute(f"CREATE INDEX ON {name} ({columns})".encode())
        conn.execute(f"ANALYZE {name}".encode())


def index_output(conn: psycopg.Connection, stage: Stage, tables: StageTables) -> None:
    """Indexes of a hidden stage's rows: to find them again, and to be joined by."""
    conn.execute(f"CREATE INDEX ON {tables.output} ({table_hash(stage.columns)})".encode())
    for name in stage.indexed:
        conn.execute(f"CREATE INDEX ON {tables.output} ({quote(name)})".encode())
    for keys in stage.partitioned:
        conn.execute(f"CREATE INDEX ON {tables.output} ({key_hash(keys)})".encode())
    for order in stage.ordered:
        conn.execute(f"CREATE INDEX ON {tables.output} ({', '.join(order)})".encode())
    conn.execute(f"ANALYZE {tables.output}".encode())


def index_result(conn: psycopg.Connection, result: str, columns: tuple[Column, ...]) -> None:
    """The index of a stream table by which rows to remove are found."""
    # PostgreSQL finds a free name: ours could meet another one, cut off at 63 bytes.
    conn.execute(f"CREATE INDEX ON {result} ({table_hash(columns)})".encode())


def drop_result_index(conn: psycopg.Connection, result: str) -> None:
    """Without it the table is altered, or filled in bulk."""
    row = conn.execute(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass AND indexprs IS NOT NULL "
        "AND pg_get_indexdef(indexrelid) LIKE '%%hash_record_extended%%' "
        "AND pg_get_indexdef(indexrelid) NOT LIKE '%% pgt_test_%%' LIMIT 1",
        (result,),
    ).fetchone()
    if row is not None:
        conn.execute(f"DROP INDEX {row[0]}".encode())


def look_away(conn: psycopg.Connection) -> None:
    """Tell our own event triggers that the DDL of this transaction is ours."""
    conn.execute("SELECT set_config('pgtrickle.internal', 'on', true)")


def drop_state(conn: psycopg.Connection, stage: Stage, tables: StageTables, *, is_last: bool) -> None:
    """Drop the stage's permanent tables except the stream table itself."""
    for name in [*state_of(stage, tables), *([] if is_last else [tables.output])]:
        conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
