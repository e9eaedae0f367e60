"""Create and drop the tables of a stage."""

from __future__ import annotations

import psycopg

from runnel.apply.counters import counter_columns
from runnel.apply.output import table_hash
from runnel.apply.partitions import key_hash
from runnel.apply.tables import StageTables, typed
from runnel.model.names import quote
from runnel.plan.stage import Bag, GroupHead, Stage


def key_definitions(head: GroupHead) -> list[str]:
    """Column definitions of the group keys."""
    return [typed(f"k{i}", t, c) for i, (t, c) in enumerate(zip(head.keys, head.key_collations, strict=True))]


def value_definitions(bag: Bag) -> list[str]:
    """Column definitions of a bag's values: with their collations, by which PostgreSQL will order them."""
    return [typed(f"v{i}", t, c) for i, (t, c) in enumerate(zip(bag.types, bag.collations, strict=True))]


def create_state(conn: psycopg.Connection, stage: Stage, tables: StageTables, owner: str, *, is_last: bool) -> None:
    """The stage's permanent tables except the stream table itself, empty and without indexes.

    They belong to the engine; the stream table's owner may only change their rows.
    """
    drop_state(conn, stage, tables, is_last=is_last)
    if isinstance(stage.head, GroupHead):
        keys = key_definitions(stage.head)
        counters = [f"{c} numeric NOT NULL" for c in counter_columns(stage.head)]
        columns = ["h int8 NOT NULL", *keys, "n int8 NOT NULL CHECK (n >= 0)", *counters]
        _create(conn, tables.groups, columns, owner)
        for i, bag in enumerate(stage.head.bags):
            values = [v if bag.nulls else f"{v} NOT NULL" for v in value_definitions(bag)]
            columns = ["h int8 NOT NULL", "vh int8 NOT NULL", *keys, *values, "n int8 NOT NULL CHECK (n > 0)"]
            _create(conn, tables.bag(i), columns, owner)
    if not is_last:
        columns = [typed(quote(c.name), c.type, c.collation) for c in stage.columns]
        _create(conn, tables.output, columns, owner)


def _create(conn: psycopg.Connection, name: str, columns: list[str], owner: str) -> None:
    conn.execute(f"CREATE TABLE {name} ({', '.join(columns)})".encode())
    conn.execute("SELECT pgtrickle._without_statistics(%s::regclass)", (name,))
    # No key, so a publication FOR ALL TABLES would forbid updates; it costs nothing unless changes are decoded.
    conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
    conn.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quote(owner)}".encode())


def index_state(conn: psycopg.Connection, stage: Stage, tables: StageTables) -> None:
    """Indexes, after a bulk load; and statistics, so that merges are planned for the real size."""
    if isinstance(stage.head, GroupHead):
        conn.execute(f"CREATE INDEX ON {tables.groups} (h)".encode())
        conn.execute(f"ANALYZE {tables.groups}".encode())
        for i in range(len(stage.head.bags)):
            conn.execute(f"CREATE INDEX ON {tables.bag(i)} (vh)".encode())
            columns = _value_index(stage.head, i)
            if columns:
                conn.execute(f"CREATE INDEX ON {tables.bag(i)} ({columns})".encode())
            conn.execute(f"ANALYZE {tables.bag(i)}".encode())


def _value_index(head: GroupHead, bag: int) -> str:
    """What the groups' values are found by: nothing when only distinct values are counted."""
    users = [a for a in head.aggregates if a.bag == bag]
    if any(a.call is None and a.function in ("min", "max") for a in users):
        return "h, v0" if head.bags[bag].types[0].is_short else "h"
    return "h" if any(a.call is not None for a in users) else ""


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


def drop_state(conn: psycopg.Connection, stage: Stage, tables: StageTables, *, is_last: bool) -> None:
    """Drop the stage's permanent tables except the stream table itself."""
    names = [tables.groups] if isinstance(stage.head, GroupHead) else []
    names += [tables.bag(i) for i in range(len(stage.head.bags))] if isinstance(stage.head, GroupHead) else []
    names += [] if is_last else [tables.output]
    for name in names:
        conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
