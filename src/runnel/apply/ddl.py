"""Create and drop the tables of a stage."""

from __future__ import annotations

import psycopg

from runnel.apply.counters import counter_columns
from runnel.apply.load import load_columns
from runnel.apply.output import output_columns, table_hash
from runnel.apply.partitions import key_hash
from runnel.apply.tables import StageTables, bags, typed
from runnel.model.names import quote
from runnel.plan.stage import GroupHead, PartitionHead, Stage

# Types short enough for every value to fit into a B-tree entry, so that min and max are one index probe.
_SHORT = ("int", "numeric", "float", "bool", "date", "timestamp", "timestamptz", "uuid", "enum")


def create_temporary(conn: psycopg.Connection, stage: Stage, tables: StageTables, owner: str) -> None:
    """The stage's temporary tables; they live as long as the session and are emptied by every commit."""
    specs = {
        tables.load: [definition for _, definition in load_columns(stage)],
        tables.delta: [
            *(typed(n, t, c.collation) for (n, t), c in zip(output_columns(stage), stage.columns, strict=True)),
            "w int8",
        ],
    }
    if isinstance(stage.head, GroupHead):
        keys = key_definitions(stage.head)
        counters = [f"{c} numeric" for c in counter_columns(stage.head)]
        specs[tables.touched] = ["h int8", *keys, "n int8", *counters]
        for j in bags(stage.head):
            specs[tables.bag_touched(j)] = [
                "h int8",
                "vh int8",
                *keys,
                value_definition(stage.head, j),
                "n int8",
            ]
    if isinstance(stage.head, PartitionHead):
        keys = [typed(f"k{i}", k.type, k.collation) for i, k in enumerate(stage.head.keys)]
        specs[tables.touched] = ["h int8", *keys]
    for name, columns in specs.items():
        conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
        bare = name.removeprefix("pg_temp.")
        conn.execute(f"CREATE TEMP TABLE {bare} ({', '.join(columns)}) ON COMMIT DELETE ROWS".encode())
        conn.execute(f"GRANT ALL ON {name} TO {quote(owner)}".encode())


def key_definitions(head: GroupHead) -> list[str]:
    """Column definitions of the group keys."""
    return [typed(f"k{i}", t, c) for i, (t, c) in enumerate(zip(head.keys, head.key_collations, strict=True))]


def value_definition(head: GroupHead, j: int) -> str:
    """Column definition of a bag's values."""
    (argument,) = head.aggregates[j].args
    return typed("v", head.inputs[argument])


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
        for j in bags(stage.head):
            value = value_definition(stage.head, j) + " NOT NULL"
            columns = ["h int8 NOT NULL", "vh int8 NOT NULL", *keys, value, "n int8 NOT NULL CHECK (n > 0)"]
            _create(conn, tables.bag(j), columns, owner)
    if not is_last:
        columns = [typed(quote(c.name), c.type, c.collation) for c in stage.columns]
        _create(conn, tables.output, columns, owner)


def _create(conn: psycopg.Connection, name: str, columns: list[str], owner: str) -> None:
    conn.execute(f"CREATE TABLE {name} ({', '.join(columns)})".encode())
    conn.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quote(owner)}".encode())


def index_state(conn: psycopg.Connection, stage: Stage, tables: StageTables) -> None:
    """Indexes, after a bulk load; and statistics, so that merges are planned for the real size."""
    if isinstance(stage.head, GroupHead):
        conn.execute(f"CREATE INDEX ON {tables.groups} (h)".encode())
        conn.execute(f"ANALYZE {tables.groups}".encode())
        for j in bags(stage.head):
            aggregate = stage.head.aggregates[j]
            conn.execute(f"CREATE INDEX ON {tables.bag(j)} (vh)".encode())
            short = stage.head.inputs[aggregate.args[0]].family in _SHORT
            if aggregate.function != "count":
                ordered = ", v" if short and aggregate.function in ("min", "max") else ""
                conn.execute(f"CREATE INDEX ON {tables.bag(j)} (h{ordered})".encode())
            conn.execute(f"ANALYZE {tables.bag(j)}".encode())


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
    names += [tables.bag(j) for j in bags(stage.head)] if isinstance(stage.head, GroupHead) else []
    names += [] if is_last else [tables.output]
    for name in names:
        conn.execute(f"DROP TABLE IF EXISTS {name}".encode())
