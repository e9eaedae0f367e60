"""Bring what Spark computed into PostgreSQL: one temporary table per stage, and its rows as the head's inputs."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from runnel.apply.tables import StageTables, typed
from runnel.plan.stage import Branch, Stage
from runnel.sources.arrow import write_arrow
from runnel.sources.statements import Query


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
    """Fill the load table."""
    if rows.num_rows:
        write_arrow(conn, rows, tables.load, rows.column_names)


def load_query(conn: psycopg.Connection, stage: Stage, tables: StageTables, number: int, query: Query) -> int:
    """Load a branch of a single leaf straight from the leaf's changes: there is nothing to join; how many rows."""
    branch = stage.branches[number]
    names, values = ["b", "w"], [f"{number}::smallint", "w"]
    for i, (leaf, index) in enumerate(branch.carried):
        names.append(carried_name(number, i))
        values.append(f"({branch.leaves[leaf].column(index)})::{branch.leaves[leaf].computed[index].type.sql}")
    for k, (leaf, index) in enumerate(branch.sums):
        names.append(f"s{k}")
        values.append(f"w * {branch.leaves[leaf].column(index)}")
    text = f"INSERT INTO {tables.load} ({', '.join(names)}) SELECT {', '.join(values)} FROM ({query.text}) AS d"
    return conn.execute(text.encode(), query.params).rowcount


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
