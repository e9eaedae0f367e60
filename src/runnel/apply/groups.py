"""GROUP BY and DISTINCT: merge a delta into the state, and find out which output rows changed.

    d(output) = f(state after) - f(state before), over the touched groups only

The touched groups' rows are written with weight -1 from the old state, the state is merged, and they are written with
weight +1 from the new state; rows that did not change cancel. f is one SELECT over counters and bags, so
expressions over aggregates and HAVING need no rules of their own.

Example: a group (k = 'tea', n = 2, s = 5) receives {value 4: +1}.

    -1 * ('tea', 5)   merge n = 3, s = 9   +1 * ('tea', 9)
"""

from __future__ import annotations

from runnel.apply.counters import counter_columns, counter_deltas, counts_distinct, reads_bags, value_sql
from runnel.apply.group_tables import group_head
from runnel.apply.load import inputs_sql
from runnel.apply.output import consolidate_delta, consolidate_sql
from runnel.apply.tables import StageTables, bag_hash, bag_items, hash_sql, same_sql
from runnel.catalog.owner import AsOwner
from runnel.model.versions import Version
from runnel.plan.stage import GroupHead, Stage


def key_names(head: GroupHead) -> list[str]:
    """k0, k1, ..."""
    return [f"k{i}" for i in range(len(head.keys))]


def bag_columns(head: GroupHead, index: int) -> list[str]:
    """The columns of a bag, in order."""
    return ["h", "vh", *key_names(head), *(f"v{i}" for i in range(len(head.bags[index].values))), "n"]


def merge_groups(owner: AsOwner, stage: Stage, tables: StageTables, *, few: bool) -> None:
    """Differential: from the load table to the delta table, through the state; `few`: rows were loaded.

    One statement costs less than seven, but PostgreSQL plans it without having seen how many groups are touched.
    """
    head = group_head(stage)
    server = owner.server
    if few and not reads_bags(head) and server.merge_returns_both:
        owner.run(_at_once_sql(stage, head, tables, server))
        return
    same = same_sql([f"g.{k}" for k in key_names(head)], [f"t.{k}" for k in key_names(head)], head.keys)
    touched = f"{tables.touched} AS t JOIN {tables.groups} AS g ON g.h = t.h AND {same}"
    bags = range(len(head.bags))
    owner.run_each(
        [
            _touch_groups(stage, head, tables),
            *(f"INSERT INTO {tables.bag_touched(i)} {_bag_delta(stage, head, tables, i, server)}" for i in bags),
            f"INSERT INTO {tables.delta} {_outputs_sql(stage, tables, touched, weight=-1)}",
            *(statement for i in bags for statement in _merge_bag(head, tables, i, server)),
            _merge_counters(head, tables, tables.touched),
            f"INSERT INTO {tables.delta} {_outputs_sql(stage, tables, touched, weight=1)}",
            consolidate_delta(stage, tables),
        ]
    )


def _at_once_sql(stage: Stage, head: GroupHead, tables: StageTables, server: Version) -> str:
    """The whole merge as one statement, where the groups' own rows say all: the MERGE gives each before and after."""
    keys = key_names(head)
    names = ["h", *keys, "n", *counter_columns(head)]
    ctes = [f"t AS ({_group_deltas(stage, head, tables, _changed(head))})"]
    touched, distinct = "t", ["t.*"]
    for i in range(len(head.bags)):
        # Without calls that read it, a bag is there to count its distinct values.
        ctes.append(f"b{i} ({', '.join(bag_columns(head, i))}) AS ({_bag_delta(stage, head, tables, i, server)})")
        ctes.append(f"m{i} AS ({_merge_bag_sql(head, tables, i, f'b{i}')} RETURNING {_met(keys)})")
        ctes.append(f"x{i} AS ({_distinct_sql(head, _came_and_went(keys, f'm{i}'))})")
        same = same_sql([f"t.{k}" for k in keys], [f"x{i}.{k}" for k in keys], head.keys)
        touched += f" LEFT JOIN x{i} ON t.h = x{i}.h AND {same}"
        distinct.append(f"x{i}.d AS d{i}")
    source = f"(SELECT {', '.join(distinct)} FROM {touched})" if head.bags else "t"
    both = ", ".join(f"{side}.{name} AS {side}_{name}" for side in ("old", "new") for name in names)
    ctes.append(f"g AS ({_merge_counters(head, tables, source)} RETURNING {both})")
    sides = [
        _outputs_sql(stage, tables, f"(SELECT {', '.join(f'{side}_{n} AS {n}' for n in names)} FROM g) AS g", weight=w)
        for side, w in (("old", -1), ("new", 1))
    ]
    return f"WITH {', '.join(ctes)} INSERT INTO {tables.delta} {consolidate_sql(stage, ' UNION ALL '.join(sides))}"


def build_groups(owner: AsOwner, stage: Stage, tables: StageTables) -> None:
    """First build: fill the empty state in bulk."""
    head = group_head(stage)
    keys, counters = key_names(head), counter_columns(head)
    columns = ", ".join(["h", *keys, "n", *counters])
    distinct = [i for i in range(len(head.bags)) if counts_distinct(head, i)]
    for i in range(len(head.bags)):
        owner.run(f"INSERT INTO {tables.bag(i)} {_bag_delta(stage, head, tables, i, owner.server)}")
    source = f"({_group_deltas(stage, head, tables, 'sum(w) <> 0')})"
    if distinct:
        owner.run(_touch_groups(stage, head, tables))
        for i in distinct:
            counted = _distinct_sql(head, f"SELECT h, {_listed(keys)} 1 AS d FROM {tables.bag(i)}")
            owner.run(_set_distinct(head, tables, i, [f"x AS ({counted})"]))
        source = tables.touched
    values = ", ".join(["h", *keys, "n", *(f"coalesce({c}, 0)" for c in counters)])
    owner.run(f"INSERT INTO {tables.groups} ({columns}) SELECT {values} FROM {source} AS t WHERE n <> 0")
    if not head.keys:
        zeros = ", ".join(["0", "0", *("0" for _ in counters)])
        owner.run(
            f"INSERT INTO {tables.groups} ({columns}) SELECT {zeros} WHERE NOT EXISTS (SELECT FROM {tables.groups})"
        )


def outputs_sql(stage: Stage, tables: StageTables) -> str:
    """The output rows of all groups from the state as it is now."""
    return _outputs_sql(stage, tables, f"{tables.groups} AS g", weight=1)


def _outputs_sql(stage: Stage, tables: StageTables, source: str, *, weight: int) -> str:
    """The output rows of groups, which `source` has as `g`."""
    head = group_head(stage)
    keys = key_names(head)
    aggregates = [f"{value_sql(head, j, tables, 'g')} AS a{j}" for j in range(len(head.aggregates))]
    # Without GROUP BY there is one row even over nothing.
    alive = "g.n > 0" if head.keys else "g.n >= 0"
    items = ", ".join([*(f"g.{k}" for k in keys), *aggregates]) or "NULL AS nothing"
    outputs = ", ".join(
        f"({sql})::{c.type.sql} AS o{i}" for i, (sql, c) in enumerate(zip(head.outputs, stage.columns, strict=True))
    )
    having = f" WHERE {head.having}" if head.having else ""
    return f"SELECT {outputs}, {weight} AS w FROM (SELECT {items} FROM {source} WHERE {alive} OFFSET 0) AS f{having}"


def _listed(keys: list[str]) -> str:
    return "".join(f"{k}, " for k in keys)


def _touch_groups(stage: Stage, head: GroupHead, tables: StageTables) -> str:
    """Which groups the delta touches, and by how much their counters change."""
    names = ", ".join(["h", *key_names(head), "n", *(c for c, _ in counter_deltas(head))])
    return f"INSERT INTO {tables.touched} ({names}) {_group_deltas(stage, head, tables, _changed(head))}"


def _changed(head: GroupHead) -> str:
    """Whether a group is touched: also when its rows only exchanged values of a bag, although no counter moved."""
    bags = ["count(*) > 1"] if head.bags else []
    return " OR ".join(["sum(w) <> 0", *(f"{sql} <> 0" for _, sql in counter_deltas(head)), *bags])


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


def _bag_delta(stage: Stage, head: GroupHead, tables: StageTables, index: int, server: Version) -> str:
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
    picked = [f"{server.any_value}({n}) AS {v}" for n, v in zip(names, values, strict=True)]
    added = ", ".join([f"{_key_hash(head)} AS h", *keys, *picked, "sum(w) AS n"])
    rows = f"SELECT {added} FROM {_keyed(stage, head, tables)}{where}{grouped} HAVING sum(w) <> 0 OFFSET 0"
    # In a SELECT of its own, so that the hash of the group is computed once a row.
    return f"SELECT {', '.join(['h', bag_hash(bag, values, 'h'), *keys, *values, 'n'])} FROM ({rows}) AS d"


def _merge_counters(head: GroupHead, tables: StageTables, touched: str) -> str:
    keys, counters = key_names(head), counter_columns(head)
    same = same_sql([f"g.{k}" for k in keys], [f"t.{k}" for k in keys], head.keys)
    updates = ", ".join(["n = g.n + t.n", *(f"{c} = g.{c} + coalesce(t.{c}, 0)" for c in counters)])
    columns = ", ".join(["h", *keys, "n", *counters])
    values = ", ".join(["t.h", *(f"t.{k}" for k in keys), "t.n", *(f"coalesce(t.{c}, 0)" for c in counters)])
    vanish = "WHEN MATCHED AND g.n + t.n = 0 THEN DELETE " if keys else ""
    return (
        f"MERGE INTO {tables.groups} AS g USING {touched} AS t ON g.h = t.h AND {same} {vanish}"
        f"WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND t.n <> 0 THEN INSERT ({columns}) VALUES ({values})"
    )


def _merge_bag(head: GroupHead, tables: StageTables, index: int, server: Version) -> list[str]:
    """Merge the changes of a bag, and note in the touched groups how many distinct values came or went."""
    changes = tables.bag_touched(index)
    merge = _merge_bag_sql(head, tables, index, changes)
    if not counts_distinct(head, index):
        return [merge]
    keys = key_names(head)
    if server.merge_returns:
        counted = _distinct_sql(head, _came_and_went(keys, "m"))
        return [_set_distinct(head, tables, index, [f"m AS ({merge} RETURNING {_met(keys)})", f"x AS ({counted})"])]
    # What the MERGE is about to do, looked up before.
    change = "CASE WHEN b.vh IS NULL THEN 1 WHEN b.n + t.n = 0 THEN -1 ELSE 0 END AS d"
    meets = f"{changes} AS t LEFT JOIN {tables.bag(index)} AS b ON {_same_value(head, index)}"
    names = ", ".join(f"t.{k}" for k in ["h", *keys])
    counted = _distinct_sql(head, f"SELECT {names}, {change} FROM {meets}")
    return [_set_distinct(head, tables, index, [f"x AS ({counted})"]), merge]


def _same_value(head: GroupHead, index: int) -> str:
    """Whether a change `t` of a bag and a row `b` of it are about the same value of the same group."""
    keys, bag = key_names(head), head.bags[index]
    values = [f"v{i}" for i in range(len(bag.values))]
    same = same_sql([f"b.{k}" for k in keys], [f"t.{k}" for k in keys], head.keys)
    if values:
        left, right = (", ".join(bag_items(bag, [f"{side}.{v}" for v in values])) for side in "bt")
        same += f" AND ROW({left}) IS NOT DISTINCT FROM ROW({right})"
    return f"b.vh = t.vh AND {same}"


def _merge_bag_sql(head: GroupHead, tables: StageTables, index: int, changes: str) -> str:
    columns = bag_columns(head, index)
    return (
        f"MERGE INTO {tables.bag(index)} AS b USING {changes} AS t ON {_same_value(head, index)} "
        "WHEN MATCHED AND b.n + t.n = 0 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET n = b.n + t.n "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f't.{c}' for c in columns)})"
    )


def _met(keys: list[str]) -> str:
    """What a MERGE into a bag returns: what it did, and in which group."""
    return ", ".join(["merge_action() AS action", *(f"t.{k}" for k in ["h", *keys])])


def _came_and_went(keys: list[str], merged: str) -> str:
    """(h, keys, d) per value that a MERGE into a bag has met: whether it is new, or gone."""
    change = "CASE action WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN -1 ELSE 0 END AS d"
    return f"SELECT h, {_listed(keys)} {change} FROM {merged}"


def _distinct_sql(head: GroupHead, source: str) -> str:
    """Changes (h, keys, d) of the number of distinct values, added up per group."""
    keys = key_names(head)
    grouped = f" GROUP BY h{''.join(f', {k}' for k in keys)}"
    return f"SELECT h, {_listed(keys)} sum(d) AS d FROM ({source}) AS y{grouped}"


def _set_distinct(head: GroupHead, tables: StageTables, index: int, ctes: list[str]) -> str:
    """Set the touched groups' change in distinct values from (h, keys, d), the last of `ctes`."""
    keys = key_names(head)
    same = same_sql([f"t.{k}" for k in keys], [f"x.{k}" for k in keys], head.keys)
    return f"WITH {', '.join(ctes)} UPDATE {tables.touched} AS t SET d{index} = x.d FROM x WHERE t.h = x.h AND {same}"
