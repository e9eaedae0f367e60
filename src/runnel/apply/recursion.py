"""WITH RECURSIVE: iterate a change to its end, in PostgreSQL, over one temporary table.

    R = base UNION [ALL] step(R, T)            ' is after the change, d the change

UNION ALL. The recursive member is linear, so the change obeys a recursion of its own, over Z-sets:

    X0     = d(base) + step(R, T') - step(R, T)        the second part is one term per changed T
    X(i+1) = step(Xi, T')
    dR     = X0 + X1 + ..                              each Xi netted, so that it ends where nothing changes

UNION. A row may have many derivations, also circular ones, so rows are removed on suspicion and derived again:

    D0     = base- + step(R, T-),   D(i+1) = step(Di, T'),   all of them within R
    I0     = base+ + step(R - D, T+) + the rows of D that base' or step(R - D, T') still gives
    I(i+1) = step(Ii, T')                              outside of R - D
    dR     = I - D

Example: edges 1->2, 1->3, 3->2; R holds what 1 reaches: {1, 2, 3}. Edge 1->2 goes: D = {2}; 3->2 derives it
again: I = {2}; dR = 0.

Both only look at what the change touches. They may meet combinations of rows that exist neither before nor after
the change, so when an expression fails, or UNION ALL does not come to an end, the query is evaluated anew instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import psycopg

from runnel.apply.output import consolidate_sql, difference_sql, output_columns, table_hash
from runnel.apply.tables import StageTables, TableSpec, group_by_sql, grouped_value, hash_sql, same_sql, typed
from runnel.catalog.owner import AsOwner
from runnel.errors import UserError
from runnel.model.names import quote
from runnel.plan.stage import RecursiveHead, Stage

# Rounds of UNION ALL after which evaluating anew is the better way, and the only one if the rounds never end.
PATIENCE = 1_000
# Rows that the rounds of UNION ALL may produce, beyond a multiple of those that R holds.
_ALLOWANCE = 10_000
_GROWTH = 4
# Rounds after which a query is held to be endless.
MAX_ROUNDS = 10_000
MAX_DEPTH = 100_000

TablesOf = Callable[[int], StageTables]
Version = Literal["after", "before", "delta", "inserted", "deleted", "either", "old"]
"""How an input takes part: its rows now; before and delta with weights `pgt_w`; the rows that came or went alone; its
rows now and those that went; the rows it had before, as rows."""
_WEIGHTED = ("before", "delta")


class _Unending(Exception):
    """The change does not come to an end this way."""


def walk_table(tables: StageTables) -> str:
    """The rows met so far: columns `o<i>`, weight `w`, the round they were met in, and for UNION their hash `h`."""
    return f"pg_temp.{quote(f'pgt_walk_{tables.prefix}')}"


def walk_temporary(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The temporary table of a recursive stage."""
    columns = [typed(n, t, c.collation) for (n, t), c in zip(output_columns(stage), stage.columns, strict=True)]
    # Weights multiply from round to round; a walk in circles would leave int8 before it is noticed.
    return {walk_table(tables): TableSpec([*columns, "w numeric", "round int4", "h int8"], ("round", "h"))}


def merge_recursion(owner: AsOwner, stage: Stage, tables: StageTables, tables_of: TablesOf) -> bool:
    """Differential: from the inputs' deltas to the stage's delta; whether there is any."""
    walk = _Walk(owner, stage, tables, tables_of)
    if not walk.look():
        return False
    try:
        with owner.conn.transaction():
            if walk.head.distinct:
                walk.derive_again()
            else:
                walk.add_up()
            met = f"SELECT {walk.names}, w FROM {walk.table}"
            owner.run(f"INSERT INTO {tables.delta} {consolidate_sql(stage, met)}")
    except (_Unending, psycopg.DataError):
        anew = build_recursion(owner, stage, tables, tables_of)
        owner.run(f"INSERT INTO {tables.delta} {difference_sql(stage, tables, anew)}")
    return bool(owner.value(f"SELECT EXISTS (SELECT FROM {tables.delta})", "bool"))


def build_recursion(owner: AsOwner, stage: Stage, tables: StageTables, tables_of: TablesOf) -> str:
    """Evaluate the query over its inputs as they are now; SQL of its rows, with columns `o<i>`."""
    walk = _Walk(owner, stage, tables, tables_of)
    columns = ", ".join(quote(c.name) for c in stage.columns)
    base = " UNION ALL ".join(walk.base_rows())
    if walk.head.distinct:
        step = walk.step(f"(SELECT {columns} FROM pgt_r)", {})
        query = f"pgt_r({columns}) AS (({base}) UNION {step}) SELECT {columns}, 1, 0 FROM pgt_r"
    else:
        depth = f"{quote(walk.head.reference)}.pgt_depth + 1"
        step = walk.step(f"(SELECT {columns}, pgt_depth FROM pgt_r WHERE pgt_depth <= {MAX_DEPTH})", {}, more=[depth])
        start = f"SELECT {walk.names}, 1 FROM ({base}) AS b"
        query = f"pgt_r({columns}, pgt_depth) AS ({start} UNION ALL {step}) SELECT {columns}, 1, pgt_depth FROM pgt_r"
    owner.conn.execute(f"TRUNCATE {walk.table}".encode())
    owner.run(f"INSERT INTO {walk.table} ({walk.names}, w, round) WITH RECURSIVE {query}")
    depth_reached = owner.value(f"SELECT max(round) FROM {walk.table}", "int4")
    if depth_reached is not None and depth_reached > MAX_DEPTH:
        raise _endless(walk.head, MAX_DEPTH)
    return f"SELECT {walk.names} FROM {walk.table}"


def _endless(head: RecursiveHead, rounds: int) -> UserError:
    return UserError(
        f"the recursive query {head.name} has not come to an end after {rounds:,} rounds",
        hint="Under UNION ALL a cycle in the data never ends: use UNION, or limit the depth in the recursive member.",
        sqlstate="22000",
    )


def _at_most(rows: int) -> str:
    """Tells the planner how small a relation is: temporary tables have no statistics, and R must not be scanned."""
    return f" LIMIT {1 << max(rows - 1, 0).bit_length()}"


class _Walk:
    """The statements of one recursive stage."""

    def __init__(self, owner: AsOwner, stage: Stage, tables: StageTables, tables_of: TablesOf) -> None:
        assert isinstance(stage.head, RecursiveHead)
        self.owner, self.stage, self.head, self.tables, self.tables_of = owner, stage, stage.head, tables, tables_of
        self.table = walk_table(tables)
        self.columns = output_columns(stage)
        self.types = [t for _, t in self.columns]
        self.names = ", ".join(n for n, _ in self.columns)
        self.changed: list[int] = []
        self.changed_bases: list[int] = []
        self.sizes: dict[int, int] = {}
        """Rows in the delta of each changed input."""
        self.round = 0
        self.last = 0
        """Rows of the last round."""

    def look(self) -> bool:
        """Find out which inputs have changed."""
        items = [*self.head.bases, *self.head.inputs]
        if not items:
            return False
        probes = ", ".join(f"(SELECT count(*) FROM {self.tables_of(i.stage).delta})" for i in items)
        (row,) = self.owner.rows(f"SELECT {probes}", ["int8"] * len(items))
        bases = len(self.head.bases)
        self.changed_bases = [i for i, new in enumerate(row[:bases]) if new]
        self.sizes = {i: new for i, new in enumerate(row[bases:]) if new}
        self.changed = list(self.sizes)
        return bool(self.changed_bases or self.changed)

    # -- UNION ALL -----------------------------------------------------------------------------------------

    def add_up(self) -> None:
        """Fill the walk with the netted change of every round."""
        parts = [self._base_delta(i, "true", weighted=True) for i in self.changed_bases]
        if self.head.linear:
            for i in self.changed:
                # Those in front of the changed input are after its change already, those behind it still before.
                versions: dict[int, Version] = {j: "before" for j in self.changed if j > i}
                parts.append(self.step(self._whole(), {**versions, i: "delta"}, weight="1"))
        elif self.changed:
            parts.append(self.step(self._whole(), {}, weight="1"))
            parts.append(self.step(self._whole(), dict.fromkeys(self.changed, "old"), weight="-1"))
        new = total = self._add(" UNION ALL ".join(parts))
        limit: int | None = None
        while new:
            if total > _ALLOWANCE and limit is None:
                limit = _ALLOWANCE + _GROWTH * self.owner.value(f"SELECT count(*) FROM {self.tables.output}", "int8")
            if self.round > PATIENCE or (limit is not None and total > limit):
                raise _Unending
            new = self._add(self.step(self._last_round(), {}, weight=f"{quote(self.head.reference)}.pgt_w"))
            total += new

    def _add(self, rows: str) -> int:
        items = ", ".join(grouped_value(n, t) for n, t in self.columns)
        added = self.owner.run(
            f"INSERT INTO {self.table} ({self.names}, w, round) SELECT {items}, sum(w), {self.round} "
            f"FROM ({rows}) AS x GROUP BY {group_by_sql(self.columns)} HAVING sum(w) <> 0"
        )
        self.round += 1
        self.last = added
        return added

    # -- UNION ---------------------------------------------------------------------------------------------

    def derive_again(self) -> None:
        """Fill the walk with the rows removed on suspicion (-1) and those (again) derived (+1)."""
        lost = [self._base_delta(i, "w < 0") for i in self.changed_bases]
        if self.head.linear:
            for i in self.changed:
                versions: dict[int, Version] = {j: "either" for j in self.changed if j != i}
                lost.append(self.step(self._whole(), {**versions, i: "deleted"}))
        elif self.changed:
            # Per row of R: a derivation found elsewhere may rest on the very row that is to go.
            by = [f"{quote(self.head.reference)}.{quote(c.name)}" for c in self.stage.columns]
            old = self.step(self._whole(), dict.fromkeys(self.changed, "old"), more=by)
            new = self.step(self._whole(), {}, more=by)
            lost.append(f"SELECT {self.names} FROM (({old}) EXCEPT ALL ({new})) AS gone")
        suspicious = f"{self._in_result()} AND NOT {self._met('<')}"
        removed = new_rows = self._collect(lost, -1, suspicious)
        while new_rows:
            # What was derived with a row that is gone was found above; the rest rests on rows that are still there.
            new_rows = self._collect([self.step(self._last_round(), {})], -1, suspicious)
        found = [self._base_delta(i, "w > 0") for i in self.changed_bases]
        kept = self._kept() if removed else self._whole()
        if removed:
            found += [*self._again_from_base(), *self._again_from_step(kept)]
        if self.head.linear:
            found += [self.step(kept, {i: "inserted"}) for i in self.changed]
        elif self.changed:
            old = self.step(kept, dict.fromkeys(self.changed, "old"))
            found.append(f"SELECT {self.names} FROM (({self.step(kept, {})}) EXCEPT ({old})) AS came")
        missing = f"({self._met('<')} OR NOT {self._in_result()})" if removed else f"NOT {self._in_result()}"
        new_rows = self._collect(found, 1, missing)
        while new_rows:
            step = self.step(self._last_round(), {})
            new_rows = self._collect([step], 1, f"{missing} AND NOT {self._met('>')}")

    def _collect(self, parts: Sequence[str], weight: int, condition: str) -> int:
        """Add the distinct rows that satisfy the condition as a new round."""
        if not parts:
            return 0
        if self.round > MAX_ROUNDS:
            raise _endless(self.head, MAX_ROUNDS)
        items = ", ".join(f"{grouped_value(n, t)} AS {n}" for n, t in self.columns)
        rows = f"SELECT {items} FROM ({' UNION ALL '.join(parts)}) AS x GROUP BY {group_by_sql(self.columns)}"
        added = self.owner.run(
            f"INSERT INTO {self.table} ({self.names}, w, round, h) SELECT {self.names}, {weight}, {self.round}, h "
            f"FROM (SELECT *, {hash_sql(self.columns)} AS h FROM ({rows}) AS d OFFSET 0) AS c "
            f"WHERE {condition}"
        )
        self.round += 1
        self.last = added
        return added

    # A scalar subquery cannot become a join, so each candidate costs one index probe and R is never scanned.

    def _in_result(self) -> str:
        same = same_sql([f"t.{quote(c.name)}" for c in self.stage.columns], self._of("c"), self.types)
        return (
            f"((SELECT true FROM {self.tables.output} AS t WHERE {table_hash(self.stage.columns, 't')} = c.h "
            f"AND {same} LIMIT 1) IS TRUE)"
        )

    def _met(self, sign: str) -> str:
        same = same_sql(self._of("v"), self._of("c"), self.types)
        return f"((SELECT true FROM {self.table} AS v WHERE v.h = c.h AND v.w {sign} 0 AND {same} LIMIT 1) IS TRUE)"

    def _kept(self) -> str:
        """R without the rows removed on suspicion."""
        names = [f"t.{quote(c.name)}" for c in self.stage.columns]
        found = (
            f"v.h = {table_hash(self.stage.columns, 't')} AND v.w < 0 AND {same_sql(self._of('v'), names, self.types)}"
        )
        return (
            f"(SELECT {', '.join(names)} FROM {self.tables.output} AS t "
            f"WHERE (SELECT true FROM {self.table} AS v WHERE {found} LIMIT 1) IS NOT TRUE)"
        )

    def _again_from_base(self) -> Iterator[str]:
        """Removed rows that the base member still gives."""
        for text in self.head.constants:
            same = same_sql(self._of("v"), self._of("b"), self.types)
            yield self._removed(f"EXISTS (SELECT FROM ({self._constant(text)}) AS b WHERE {same})")
        for base in self.head.bases:
            values = [f"b.{quote(c.name)}" for c in base.columns]
            typed_ = [f"({v})::{t.sql}" for v, t in zip(values, self.types, strict=True)]
            found = same_sql(self._of("v"), typed_, self.types)
            if [c.type for c in base.columns] == self.types:
                found = f"{table_hash(base.columns, 'b')} = v.h AND {found}"
            yield self._removed(f"(SELECT true FROM {self.tables_of(base.stage).output} AS b WHERE {found} LIMIT 1)")

    def _removed(self, condition: str) -> str:
        return f"SELECT {', '.join(self._of('v'))} FROM {self.table} AS v WHERE v.w < 0 AND {condition}"

    def _again_from_step(self, kept: str) -> Iterator[str]:
        """Removed rows that the recursive member still derives from the others.

        Where a result column is a plain column, the removed row's value leads to the rows that could derive it, so
        they are looked for by which of these columns are NULL.
        """
        values = [f"({e})::{t.sql}" for e, t in zip(self.head.outputs, self.types, strict=True)]
        same = same_sql(self._of("pgt_v"), values, self.types)
        nulls = [f"o{i} IS NULL" for i in self.head.plain]
        grouped = f" GROUP BY {', '.join(nulls)}" if nulls else ""
        patterns = self.owner.rows(
            f"SELECT {', '.join(['count(*)', *nulls])} FROM {self.table} WHERE w < 0{grouped}",
            ["int8", *("bool" for _ in nulls)],
        )
        for count, *pattern in patterns:
            narrow = [same]
            of_pattern = ["w < 0"]
            for i, is_null in zip(self.head.plain, pattern, strict=True):
                of_pattern.append(f"o{i} IS {'' if is_null else 'NOT '}NULL")
                narrow.append(f"{self.head.outputs[i]} IS NULL" if is_null else f"{self.head.outputs[i]} = pgt_v.o{i}")
            removed = f"SELECT {self.names} FROM {self.table} WHERE {' AND '.join(of_pattern)}{_at_most(count)}"
            step = self.step(kept, {}, where=narrow, first=f"({removed}) AS pgt_v")
            yield f"SELECT {self.names} FROM ({step}) AS again"

    def _of(self, alias: str) -> list[str]:
        return [f"{alias}.{n}" for n, _ in self.columns]

    # -- relations -----------------------------------------------------------------------------------------

    def step(
        self,
        recursion: str,
        versions: Mapping[int, Version],
        *,
        weight: str | None = None,
        more: Sequence[str] = (),
        where: Sequence[str] = (),
        first: str | None = None,
    ) -> str:
        """The recursive member over a relation for R and a version of each input; `weight` is that of R's rows."""
        items = [f"({e})::{t.sql} AS {n}" for e, (n, t) in zip(self.head.outputs, self.columns, strict=True)]
        items += [f"{e} AS m{i}" for i, e in enumerate(more)]
        if weight is not None:
            weighted = [f"{quote(self.head.inputs[i].alias)}.pgt_w" for i, v in versions.items() if v in _WEIGHTED]
            items.append(f"{' * '.join([weight, *weighted])} AS w")
        source = "".join(
            part
            if isinstance(part, str)
            else f"{recursion} AS {quote(self.head.reference)}"
            if part < 0
            else f"{self._version(part, versions.get(part, 'after'))} AS {quote(self.head.inputs[part].alias)}"
            for part in self.head.source
        )
        conditions = [f"({self.head.condition})"] if self.head.condition else []
        conditions += where
        filtered = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(items)} FROM {f'{first}, ' if first else ''}{source}{filtered}"

    def _version(self, number: int, version: Version) -> str:
        item = self.head.inputs[number]
        tables = self.tables_of(item.stage)
        names = ", ".join(quote(c.name) for c in item.columns)
        new = ", ".join(f"o{i} AS {quote(c.name)}" for i, c in enumerate(item.columns))
        few = _at_most(self.sizes.get(number, 0))
        match version:
            case "after":
                return f"(SELECT {names} FROM {tables.output})"
            case "delta":
                return f"(SELECT {new}, w AS pgt_w FROM {tables.delta}{few})"
            case "before":
                # The same types on both sides let PostgreSQL push a join into each of them.
                gone = f"(SELECT {new}, -w AS pgt_w FROM {tables.delta}{few})"
                return f"(SELECT {names}, 1::int8 AS pgt_w FROM {tables.output} UNION ALL {gone})"
            case "inserted":
                return f"(SELECT {new} FROM {tables.delta} WHERE w > 0{few})"
            case "deleted":
                return f"(SELECT {new} FROM {tables.delta} WHERE w < 0{few})"
            case "either":
                gone = f"(SELECT {new} FROM {tables.delta} WHERE w < 0{few})"
                return f"(SELECT {names} FROM {tables.output} UNION ALL {gone})"
            case "old":
                pairs = [(quote(c.name), c.type) for c in item.columns]
                values = ", ".join(f"{grouped_value(n, t)} AS {n}" for n, t in pairs)
                gone = f"SELECT {new}, -w FROM {tables.delta}"
                both = f"SELECT {names}, 1::int8 AS w FROM {tables.output} UNION ALL {gone}"
                netted = f"SELECT {values}, sum(w) AS w FROM ({both}) AS x GROUP BY {group_by_sql(pairs)}"
                return f"(SELECT {names} FROM ({netted}) AS n, generate_series(1, n.w))"

    def base_rows(self) -> list[str]:
        """The base member's rows now, part by part."""
        rows = [self._constant(text) for text in self.head.constants]
        for base in self.head.bases:
            pairs = zip(base.columns, self.columns, strict=True)
            values = [f"({quote(c.name)})::{t.sql} AS {n}" for c, (n, t) in pairs]
            rows.append(f"SELECT {', '.join(values)} FROM {self.tables_of(base.stage).output}")
        return rows

    def _constant(self, text: str) -> str:
        values = ", ".join(f"({n})::{t.sql} AS {n}" for n, t in self.columns)
        return f"SELECT {values} FROM ({text}) AS k({self.names})"

    def _base_delta(self, number: int, condition: str, *, weighted: bool = False) -> str:
        values = ", ".join(f"({n})::{t.sql} AS {n}" for n, t in self.columns)
        delta = self.tables_of(self.head.bases[number].stage).delta
        return f"SELECT {values}{', w' if weighted else ''} FROM {delta} WHERE {condition}"

    def _whole(self) -> str:
        """R before the change."""
        return f"(SELECT {', '.join(quote(c.name) for c in self.stage.columns)} FROM {self.tables.output})"

    def _last_round(self) -> str:
        named = ", ".join(f"{n} AS {quote(c.name)}" for (n, _), c in zip(self.columns, self.stage.columns, strict=True))
        return f"(SELECT {named}, w AS pgt_w FROM {self.table} WHERE round = {self.round - 1}{_at_most(self.last)})"
