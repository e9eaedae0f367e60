"""Bring what Spark computed into PostgreSQL: one temporary table per stage, and its rows as the head's inputs."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from runnel.apply.tables import StageTables, typed
from runnel.plan.stage import Branch, Stage
from runnel.sources.arrow import write_arrow


def load_columns(stage: Stage) -> list[tuple[str, str]]:
    """(name, definition) of the load table: every branch has carried columns of its own."""
    columns = [("b", "b smallint"), ("w", "w int8")]
    for number, branch in enumerate(stage.branches):
        for i, (leaf, index) in enumerate(branch.carried):
            computed = branch.leaves[leaf].computed[index]
            name = carried_name(number, i)
            columns.append((name, typed(name, computed.type, computed.collation)))
    sums = len(stage.branches[0].sums) if stage.branches else 0
    return columns + [(f"s{k}", f"s{k} numeric") for k in range(sums)]


def carried_name(branch: int, position: int) -> str:
    """A carried column's name in Spark's result and in the load table."""
    return f"b{branch}_{position}"


def load(conn: psycopg.Connection, stage: Stage, tables: StageTables, rows: pa.Table) -> None:
    """Replace the load table's rows."""
    conn.execute(f"TRUNCATE {tables.load}".encode())
    if rows.num_rows:
        write_arrow(conn, rows, tables.load, rows.column_names)


def inputs_sql(stage: Stage, tables: StageTables) -> str:
    """The loaded rows as inputs `i<n>` of the head, with weight and partial sums."""
    return " UNION ALL ".join(_branch_sql(stage, n, b, tables) for n, b in enumerate(stage.branches))


def _branch_sql(stage: Stage, number: int, branch: Branch, tables: StageTables) -> str:
    carried = [f"{carried_name(number, i)} AS c{i}" for i in range(len(branch.carried))]
    sums = [f"s{k}" for k in range(len(branch.sums))]
    inner = f"SELECT {', '.join([*carried, 'w', *sums])} FROM {tables.load} WHERE b = {number}"
    outer = ", ".join([*(f"{sql} AS i{i}" for i, sql in enumerate(branch.inputs)), "w", *sums])
    where = f" WHERE {' AND '.join(f'({c})' for c in branch.late)}" if branch.late else ""
    return f"SELECT {outer} FROM ({inner}) AS r{where}"
