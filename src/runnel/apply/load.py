"""Bring what Spark computed into PostgreSQL: one temporary table per stage, and its rows as the head's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runnel.apply.tables import StageTables, typed
from runnel.catalog.owner import AsOwner
from runnel.plan.stage import Branch, Computed, Stage, carried_name
from runnel.ports.rows import Query
from runnel.sources.arrow import copy_csv


def load_columns(stage: Stage) -> list[tuple[str, str]]:
    """(name, definition) of the load table: every branch has carried columns of its own."""
    columns = [("b", "b smallint"), ("w", "w int8")]
    for name, computed in _carried(stage).items():
        columns.append((name, typed(name, computed.type, computed.collation)))
    sums = len(stage.branches[0].sums) if stage.branches else 0
    return columns + [(f"s{k}", f"s{k} numeric") for k in range(sums)]


def raw_columns(stage: Stage) -> list[str]:
    """The definitions of the raw table, for stages whose load table has columns of users' types; else none.

    What makes a value out of such a type's text may be the owner's own code (a domain's constraint), so COPY, which is
    the engine's, only brings the text.
    """
    if all(computed.type.is_builtin for computed in _carried(stage).values()):
        return []
    return [f"{name} text" for name, _ in load_columns(stage)]


def load(owner: AsOwner, stage: Stage, tables: StageTables, names: Sequence[str], chunks: Iterable[bytes]) -> None:
    """Fill the load table from the text of a COPY in CSV, which comes in pieces."""
    if owner.runner is None or not raw_columns(stage):
        copy_csv(owner.conn, tables.load, names, chunks)
        return
    copy_csv(owner.conn, tables.raw, names, chunks)
    owner.run(f"INSERT INTO {tables.load} ({', '.join(names)}) SELECT {_cast(stage, names)} FROM {tables.raw}")


def count_load(owner: AsOwner, stage: Stage, tables: StageTables) -> None:
    """Tell the planner about many loaded rows: of a temporary table it knows nothing but the size.

    ANALYZE would call functions of users' types with the engine's rights. It looks at 300 rows for each unit of its
    target: 3,000 say as well as 30,000 about how many groups there are, in a tenth of the time.
    """
    if not raw_columns(stage):
        target = "default_statistics_target"
        owner.conn.execute(f"SET LOCAL {target} = 10; ANALYZE {tables.load}; RESET {target}".encode())


def _cast(stage: Stage, names: Sequence[str]) -> str:
    """Columns of a load, each in its type."""
    types = {"b": "smallint", "w": "int8", **{name: computed.type.sql for name, computed in _carried(stage).items()}}
    return ", ".join(f"({name})::{types.get(name, 'numeric')}" for name in names)


def _carried(stage: Stage) -> dict[str, Computed]:
    return {
        carried_name(number, i): branch.leaves[leaf].computed[index]
        for number, branch in enumerate(stage.branches)
        for i, (leaf, index) in enumerate(branch.carried)
    }


def load_query(owner: AsOwner, stage: Stage, tables: StageTables, query: Query, names: Sequence[str]) -> int:
    """Load rows that PostgreSQL itself has computed, by the names of the load table; how many."""
    text = f"INSERT INTO {tables.load} ({', '.join(names)}) SELECT {_cast(stage, names)} FROM ({query.text}) AS d"
    return owner.run(text, query.params or {"none": None})


def load_leaf(owner: AsOwner, stage: Stage, tables: StageTables, number: int, query: Query) -> int:
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
    return owner.run(text, query.params)


def inputs_sql(stage: Stage, tables: StageTables) -> str:
    """The loaded rows as inputs `i<n>` of the head, with weight and partial sums."""
    return " UNION ALL ".join(_branch_sql(stage, n, b, tables) for n, b in enumerate(stage.branches))


def _branch_sql(stage: Stage, number: int, branch: Branch, tables: StageTables) -> str:
    carried = [f"{carried_name(number, i)} AS c{i}" for i in range(len(branch.carried))]
    sums = [f"s{k}" for k in range(len(branch.sums))]
    # Of a condition PostgreSQL would expect to leave one row in two hundred: where all rows are meant there is none.
    own = f" WHERE b = {number}" if len(stage.branches) > 1 else ""
    inner = f"SELECT {', '.join([*carried, 'w', *sums])} FROM {tables.load}{own}"
    outer = ", ".join([*(f"{sql} AS i{i}" for i, sql in enumerate(branch.inputs)), "w", *sums])
    where = f" WHERE {' AND '.join(f'({c})' for c in branch.late)}" if branch.late else ""
    return f"SELECT {outer} FROM ({inner}) AS r{where}"
