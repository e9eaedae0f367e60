"""Window functions, DISTINCT ON and LIMIT: recompute the touched partitions.

For a function f that treats each partition of its input by itself, and K the partitions that the input's delta
touches:

    d(output) = f(input after | K) - f(input before | K)

The input is the table of an earlier, hidden stage. Its old rows are looked at just before that stage's delta is
applied, its new rows afterwards; output rows that did not change cancel. PostgreSQL evaluates f, so frames,
collations and ties are its own.

Example: rank() over (partition by team order by points desc); a player of team 'red' gains points.

    K = {red}    -1 * ranks of red before    +1 * ranks of red after    (other teams are not read)

LIMIT without partitions is one partition, of which an index in the order of ORDER BY yields the first rows.

State: the input's rows. Cost: the rows of the touched partitions, twice; for LIMIT k about k rows.
"""

from __future__ import annotations

from runnel.apply.output import consolidate_delta
from runnel.apply.tables import StageTables, TableSpec, hash_sql, same_sql, typed
from runnel.catalog.owner import AsOwner
from runnel.model.names import quote
from runnel.model.types import Column
from runnel.plan.stage import PartitionHead, Stage


def key_hash(keys: tuple[Column, ...], alias: str = "") -> str:
    """The hash by which a partition's rows are found in the input; the input carries an index on it."""
    prefix = f"{alias}." if alias else ""
    return hash_sql([(prefix + quote(k.name), k.type) for k in keys])


def partition_temporary(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The table of touched partitions."""
    keys = [typed(f"k{i}", k.type, k.collation) for i, k in enumerate(_head(stage).keys)]
    return {tables.touched: TableSpec(["h int8", *keys])}


def touch_partitions(owner: AsOwner, stage: Stage, tables: StageTables, source: StageTables) -> None:
    """Before the input changes: note the partitions its delta touches, and their rows with weight -1."""
    head = _head(stage)
    positions = {c.name: i for i, c in enumerate(head.source.columns)}
    columns = [(f"o{positions[k.name]}", k) for k in head.keys]
    values = ", ".join([hash_sql([(o, k.type) for o, k in columns]), *(o for o, _ in columns)])
    names = ", ".join(["h", *(f"k{i}" for i in range(len(columns)))])
    touch = f"INSERT INTO {tables.touched} ({names}) SELECT DISTINCT {values} FROM {source.delta}"
    owner.run_each([touch, _add_outputs(stage, tables, source, weight=-1)])


def recompute_partitions(owner: AsOwner, stage: Stage, tables: StageTables, source: StageTables) -> None:
    """After the input has changed: the touched partitions again with weight +1; equal rows cancel."""
    owner.run_each([_add_outputs(stage, tables, source, weight=1), consolidate_delta(stage, tables)])


def all_rows_sql(stage: Stage, source: StageTables) -> str:
    """The whole result, columns o<i>."""
    names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
    return f"SELECT * FROM ({_block(_head(stage), source.output)}) AS f({names})"


def _add_outputs(stage: Stage, tables: StageTables, source: StageTables, *, weight: int) -> str:
    head = _head(stage)
    rows = source.output
    if head.keys:
        own = [f"r.{quote(k.name)}" for k in head.keys]
        same = same_sql(own, [f"t.k{i}" for i in range(len(own))], [k.type for k in head.keys])
        rows = (
            f"(SELECT r.* FROM {tables.touched} AS t JOIN {source.output} AS r "
            f"ON {key_hash(head.keys, 'r')} = t.h AND {same})"
        )
    items = ", ".join(f"(o{i})::{c.type.sql}" for i, c in enumerate(stage.columns))
    names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
    touched = "" if head.keys else f" WHERE EXISTS (SELECT FROM {tables.touched})"
    return f"INSERT INTO {tables.delta} SELECT {items}, {weight} FROM ({_block(head, rows)}) AS f({names}){touched}"


def _block(head: PartitionHead, rows: str) -> str:
    if head.sorted:
        rows = f"(SELECT * FROM {rows} AS u ORDER BY {', '.join(head.sorted)})"
    return f"SELECT {head.items} FROM {rows} AS s{head.rest}"


def _head(stage: Stage) -> PartitionHead:
    assert isinstance(stage.head, PartitionHead)
    return stage.head
