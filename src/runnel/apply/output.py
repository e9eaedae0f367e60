"""Result rows: apply a stage's output delta to its table, and write the change log.

The delta is a Z-set over the output columns. A negative weight removes that many equal rows, a positive one adds
rows. If fewer rows are found than must be removed, somebody else has written to the table: the refresh is
undone and the table rebuilt.
"""

from __future__ import annotations

from runnel.apply.tables import StageTables, group_by_sql, grouped_value, hash_sql, same_sql
from runnel.catalog.owner import AsOwner, literal
from runnel.errors import EngineBug
from runnel.model.names import quote
from runnel.model.types import Column, PgType
from runnel.plan.stage import Stage


class OutputDrift(EngineBug):
    """The stage's table does not hold the rows that the state says it holds."""


def output_columns(stage: Stage) -> list[tuple[str, PgType]]:
    """(delta column, type) of each output."""
    return [(f"o{i}", c.type) for i, c in enumerate(stage.columns)]


def consolidate_sql(stage: Stage, source: str) -> str:
    """Add up the weights of equal rows, dropping those that cancel."""
    columns = output_columns(stage)
    items = ", ".join(grouped_value(n, t) for n, t in columns)
    return f"SELECT {items}, sum(w)::int8 FROM ({source}) AS x GROUP BY {group_by_sql(columns)} HAVING sum(w) <> 0"


def consolidate_delta(stage: Stage, tables: StageTables) -> str:
    """Lets rows of the delta table that were written with opposite weights cancel."""
    names = ", ".join(n for n, _ in output_columns(stage))
    return (
        f"WITH raw AS (DELETE FROM {tables.delta} RETURNING *) INSERT INTO {tables.delta} "
        f"{consolidate_sql(stage, f'SELECT {names}, w FROM raw')}"
    )


def table_hash(columns: tuple[Column, ...], alias: str = "") -> str:
    """The hash by which rows of an output table are found; the table carries an index on it."""
    prefix = f"{alias}." if alias else ""
    return hash_sql([(prefix + quote(c.name), c.type) for c in columns])


def apply_delta(owner: AsOwner, stage: Stage, tables: StageTables, trigger_path: str | None = None) -> tuple[int, int]:
    """Apply the delta table to the output table; (rows inserted, rows deleted).

    Triggers of the table run with `trigger_path`, its owner's search path. The statements themselves are read under the
    pinned one: the condition that sets the other is evaluated when they run, before the first row.
    """
    prepare = f" AND {_found_by_triggers(trigger_path)}"
    columns = output_columns(stage)
    names = [quote(c.name) for c in stage.columns]
    types = [c.type for c in stage.columns]
    same = same_sql([f"t.{n}" for n in names], [f"d.{n}" for n, _ in columns], types)
    delta_hash = hash_sql([(f"d.{n}", t) for n, t in columns])
    delete = f"""DELETE FROM {tables.output} AS r USING (
              SELECT t.ctid AS id, t.tableoid AS rel, d.w AS w,
                     row_number() OVER (PARTITION BY d.ctid) AS rank
              FROM {tables.delta} AS d JOIN {tables.output} AS t
                ON {table_hash(stage.columns, "t")} = {delta_hash} AND {same}
              WHERE d.w < 0) AS x
            WHERE r.ctid = x.id AND r.tableoid = x.rel AND x.rank <= -x.w{prepare}"""
    insert = f"""INSERT INTO {tables.output} ({", ".join(names)})
            SELECT {", ".join(n for n, _ in columns)} FROM {tables.delta}, generate_series(1, w) WHERE w > 0{prepare}"""
    # The engine's own table and a built-in type: nothing of the owner's is evaluated.
    removals = f"SELECT coalesce(sum(-w), 0)::int8 FROM {tables.delta} WHERE w < 0"
    expected, (deleted, _, inserted, _) = owner.run_each([delete, owner.pinning, insert, owner.pinning], ask=removals)
    if expected != deleted:
        raise OutputDrift(
            f"{tables.output} holds {deleted} of {expected} rows that are to be removed: somebody else has "
            "written to it",
            hint="It is rebuilt at the next refresh. Do not write to stream tables.",
        )
    return inserted, deleted


def insert_all(owner: AsOwner, stage: Stage, tables: StageTables, source: str, trigger_path: str | None) -> int:
    """Fill the output table, which is empty, with the rows of `source` (columns o<i>); how many."""
    names = ", ".join(quote(c.name) for c in stage.columns)
    columns = ", ".join(n for n, _ in output_columns(stage))
    inserted = owner.run(
        f"INSERT INTO {tables.output} ({names}) SELECT {columns} FROM ({source}) AS n "
        f"WHERE {_found_by_triggers(trigger_path)}"
    )
    if trigger_path is not None:
        owner.pin()
    return inserted


def all_as_delta(owner: AsOwner, stage: Stage, tables: StageTables) -> None:
    """Fill the delta table with the rows of the output table: all of them are new."""
    names = ", ".join(quote(c.name) for c in stage.columns)
    columns = ", ".join(n for n, _ in output_columns(stage))
    owner.run(f"INSERT INTO {tables.delta} ({columns}, w) SELECT {names}, 1 FROM {tables.output}")


def _found_by_triggers(path: str | None) -> str:
    """A condition that holds, and gives triggers their search path."""
    return "true" if path is None else f"(SELECT set_config('search_path', {literal(path)}, true)) IS NOT NULL"


def difference_sql(stage: Stage, tables: StageTables, source: str) -> str:
    """The delta that turns the output table into the rows of `source` (columns o<i>)."""
    columns = output_columns(stage)
    names = ", ".join(n for n, _ in columns)
    current = ", ".join(f"{quote(c.name)} AS o{i}" for i, c in enumerate(stage.columns))
    both = (
        f"SELECT {names}, 1 AS w FROM ({source}) AS n UNION ALL "
        f"SELECT {names}, -1 AS w FROM (SELECT {current} FROM {tables.output}) AS c"
    )
    return consolidate_sql(stage, both)


def expanded_sql(stage: Stage, rows: str) -> str:
    """Rows with weights as plain rows."""
    names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
    return f"SELECT {names} FROM ({rows}) AS e, generate_series(1, e.w)"
