"""GROUP BY and DISTINCT: merge a delta into the state, and find out which output rows changed.

    d(output) = f(state after) - f(state before), over the touched groups only

The touched groups' rows are written with weight -1 from the old state, the state is merged, and they are written with
weight +1 from the new state; rows that did not change cancel. f is one SELECT over counters and bags, so
expressions over aggregates and HAVING need no rules of their own.

Example: a group (k = 'tea', n = 2, s = 5) receives {value 4: +1}.

    -1 * ('tea', 5)   merge n = 3, s = 9   +1 * ('tea', 9)
"""

from __future__ import annotations

from runnel.apply.counters import counter_columns, counter_deltas, counts_distinct, value_sql
from runnel.apply.group_tables import group_head
from runnel.apply.load import inputs_sql
from runnel.apply.output import consolidate_delta
from runnel.apply.tables import StageTables, bag_hash, bag_items, hash_sql, same_sql
from runnel.catalog.owner import AsOwner
from runnel.plan.stage import GroupHead, Stage


def key_names(head: GroupHead) -> list[str]:
    """k0, k1, ..."""
    return [f"k{i}" for i in range(len(head.keys))]


def merge_groups(owner: AsOwner, stage: Stage, tables: StageTables) -> None:
    """Differential: from the load table to the delta table, through the state."""
    head = group_head(stage)
    _touch(owner, stage, head, tables)
    before = outputs_sql(stage, tables, weight=-1, touched_only=True)
    owner.run(f"INSERT INTO {tables.delta} {before}")
    for i in range(len(head.bags)):
        _merge_bag(owner, head, tables, i)
    _merge_counters(owner, head, tables)
    after = outputs_sql(stage, tables, weight=1, touched_only=True)
    owner.run(f"INSERT INTO {tables.delta} {after}")
    consolidate_delta(owner, stage, tables)


def build_groups(owner: AsOwner, stage: Stage, tables: StageTables) -> None:
    """First build: fill the empty state in bulk."""
    head = group_head(stage)
    keys, counters = key_names(head), counter_columns(head)
    columns = ", ".join(["h", *keys, "n", *counters])
    distinct = [i for i in range(len(head.bags)) if counts_distinct(head, i)]
    for i in range(len(head.bags)):
        owner.run(f"INSERT INTO {tables.bag(i)} {_bag_delta(stage, head, tables, i)}")
    source = f"({_group_deltas(stage, head, tables, 'sum(w) <> 0')})"
    if distinct:
        _touch_groups(owner, stage, head, tables)
        for i in distinct:
            _add_distinct(owner, head, tables, i, f"SELECT h, {_listed(keys)} 1 AS d FROM {tables.bag(i)}")
        source = tables.touched
    values = ", ".join(["h", *keys, "n", *(f"coalesce({c}, 0)" for c in counters)])
    owner.run(f"INSERT INTO {tables.groups} ({columns}) SELECT {values} FROM {source} AS t WHERE n <> 0")
    if not head.keys:
        zeros = ", ".join(["0", "0", *("0" for _ in counters)])
        owner.run(
            f"INSERT INTO {tables.groups} ({columns}) SELECT {zeros} WHERE NOT EXISTS (SELECT FROM {tables.groups})"
        )


def outputs_sql(stage: Stage, tables: StageTables, *, weight: int, touched_only: bool) -> str:
    """The output rows of (touched) groups from the state as it is now."""
    head = group_head(stage)
    keys = key_names(head)
    aggregates = [f"{value_sql(head, j, tables, 'g')} AS a{j}" for j in range(len(head.aggregates))]
    source = f"{tables.groups} AS g"
    if touched_only:
        same = same_sql([f"g.{k}" for k in keys], [f"t.{k}" for k in keys], head.keys)
        source = f"{tables.touched} AS t JOIN {source} ON g.h = t.h AND {same}"
    # Without GROUP BY there is one row even over nothing.
    alive = "g.n > 0" if head.keys else "true"
    items = ", ".join([*(f"g.{k}" for k in keys), *aggregates]) or "NULL AS nothing"
    outputs = ", ".join(
        f"({sql})::{c.type.sql} AS o{i}" for i, (sql, c) in enumerate(zip(head.outputs, stage.columns, strict=True))
    )
    having = f" WHERE {head.having}" if head.having else ""
    return f"SELECT {outputs}, {weight} AS w FROM (SELECT {items} FROM {source} WHERE {alive} OFFSET 0) AS f{having}"


def _listed(keys: list[str]) -> str:
    return "".join(f"{k}, " for k in keys)


def _touch(owner: AsOwner, stage: Stage, head: GroupHead, tables: StageTables) -> None:
    """Which groups the delta touches, and by how much their counters and bags change."""
    _touch_groups(owner, stage, head, tables)
    for i in range(len(head.bags)):
        owner.run(f"INSERT INTO {tables.bag_touched(i)} {_bag_delta(stage, head, tables, i)}")


def _touch_groups(owner: AsOwner, stage: Stage, head: GroupHead, tables: StageTables) -> None:
    deltas = counter_deltas(head)
    names = ", ".join(["h", *key_names(head), "n", *(c for c, _ in deltas)])
    changed = " OR ".join(["sum(w) <> 0", *(f"{sql} <> 0" for _, sql in deltas), *_bag_changes(head)])
    owner.run(f"INSERT INTO {tables.touched} ({names}) {_group_deltas(stage, head, tables, changed)}")


def _group_deltas(stage: Stage, head: GroupHead, tables: StageTables, having: str) -> str:
    """The loaded rows added up per group: hash, keys, `n`, and the counters that rows add to."""
    keys = key_names(head)
    counters = [f"{sql} AS {name}" for name, sql in counter_deltas(head)]
    values = ", ".join([f"{_key_hash(head)} AS h", *keys, "sum(w) AS n", *counters])
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {values} FROM {_keyed(stage, head, tables)}{grouped} HAVING {having}"


def _keyed(stage: Stage, head: GroupHead, tables: StageTables) -> str:
    """The loaded rows with their keys named."""
    renamed = ", ".join([*(f"i{i} AS k{i}" for i in range(len(head.keys))), "*"])
    return f"(SELECT {renamed} FROM ({inputs_sql(stage, tables)}) AS i) AS r"


def _key_hash(head: GroupHead) -> str:
    return hash_sql(list(zip(key_names(head), head.keys, strict=True)))


def _bag_delta(stage: Stage, head: GroupHead, tables: StageTables, index: int) -> str:
    """The change of a bag: (h, vh, keys, values, n) in the order of its columns."""
    keys, bag = key_names(head), head.bags[index]
    names = [f"i{v}" for v in bag.values]
    items = bag_items(bag, names)
    # IS NOT NULL would leave out rows (composites) that hold a NULL somewhere.
    conditions = [] if bag.filter is None else [f"i{bag.filter}"]
    conditions += [] if bag.nulls else [f"{n} IS DISTINCT FROM NULL" for n in names]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    grouped = f" GROUP BY {', '.join([*keys, *items])}" if keys or items else ""
    # Of values that are grouped as one, any will do.
    values = [f"v{i}" for i in range(len(names))]
    picked = [f"any_value({n}) AS {v}" for n, v in zip(names, values, strict=True)]
    added = ", ".join([f"{_key_hash(head)} AS h", *keys, *picked, "sum(w) AS n"])
    rows = f"SELECT {added} FROM {_keyed(stage, head, tables)}{where}{grouped} HAVING sum(w) <> 0 OFFSET 0"
    # In a SELECT of its own, so that the hash of the group is computed once a row.
    return f"SELECT {', '.join(['h', bag_hash(bag, values, 'h'), *keys, *values, 'n'])} FROM ({rows}) AS d"


def _bag_changes(head: GroupHead) -> list[str]:
    """A group whose rows only exchanged values is touched although no counter moved."""
    return ["count(*) > 1"] if head.bags else []


def _merge_counters(owner: AsOwner, head: GroupHead, tables: StageTables) -> None:
    keys, counters = key_names(head), counter_columns(head)
    same = same_sql([f"g.{k}" for k in keys], [f"t.{k}" for k in keys], head.keys)
    updates = ", ".join(["n = g.n + t.n", *(f"{c} = g.{c} + coalesce(t.{c}, 0)" for c in counters)])
    columns = ", ".join(["h", *keys, "n", *counters])
    values = ", ".join(["t.h", *(f"t.{k}" for k in keys), "t.n", *(f"coalesce(t.{c}, 0)" for c in counters)])
    vanish = "WHEN MATCHED AND g.n + t.n = 0 THEN DELETE " if keys else ""
    owner.run(
        f"MERGE INTO {tables.groups} AS g USING {tables.touched} AS t ON g.h = t.h AND {same} {vanish}"
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND t.n <> 0 THEN INSERT ({columns}) VALUES ({values})"
    )


def _merge_bag(owner: AsOwner, head: GroupHead, tables: StageTables, index: int) -> None:
    keys, bag = key_names(head), head.bags[index]
    values = [f"v{i}" for i in range(len(bag.values))]
    same = same_sql([f"b.{k}" for k in keys], [f"t.{k}" for k in keys], head.keys)
    if values:
        left, right = (", ".join(bag_items(bag, [f"{side}.{v}" for v in values])) for side in "bt")
        same += f" AND ROW({left}) IS NOT DISTINCT FROM ROW({right})"
    columns = ["h", "vh", *keys, *values, "n"]
    merge = (
        f"MERGE INTO {tables.bag(index)} AS b USING {tables.bag_touched(index)} AS t ON b.vh = t.vh AND {same} "
        "WHEN MATCHED AND b.n + t.n = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = b.n + t.n "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f't.{c}' for c in columns)})"
    )
    if not counts_distinct(head, index):
        owner.run(merge)
        return
    returned = ", ".join(["merge_action() AS action", *(f"t.{k}" for k in ["h", *keys])])
    source = f"SELECT h, {_listed(keys)} CASE action WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN -1 ELSE 0 END AS d FROM m"
    _add_distinct(owner, head, tables, index, source, f"m AS ({merge} RETURNING {returned})")


def _add_distinct(
    owner: AsOwner,
    head: GroupHead,
    tables: StageTables,
    index: int,
    source: str,
    cte: str | None = None,
) -> None:
    """Set the touched groups' change in distinct values from (h, keys, d) rows."""
    keys = key_names(head)
    grouped = f" GROUP BY h{''.join(f', {k}' for k in keys)}"
    sums = f"x AS (SELECT h, {_listed(keys)} sum(d) AS d FROM ({source}) AS y{grouped})"
    ctes = ", ".join([cte, sums] if cte else [sums])
    same = same_sql([f"t.{k}" for k in keys], [f"x.{k}" for k in keys], head.keys)
    owner.run(f"WITH {ctes} UPDATE {tables.touched} AS t SET d{index} = x.d FROM x WHERE t.h = x.h AND {same}")
