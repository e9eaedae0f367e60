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

from collections.abc import Iterator, Sequence

import psycopg

from runnel.apply.output import consolidate_sql, difference_sql, table_hash
from runnel.apply.recursive_sql import RecursiveSql, TablesOf, Version, at_most
from runnel.apply.tables import StageTables, group_by_sql, grouped_value, hash_sql, same_sql
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


class _Unending(Exception):
    """Round after round of UNION ALL brings more rows: evaluating the query anew is better, or the only way."""


def merge_recursion(owner: AsOwner, stage: Stage, tables: StageTables, tables_of: TablesOf) -> bool:
    """Differential: fill the stage's delta table from those of what it reads; whether there is any change."""
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
    """Evaluate the query over its inputs as they are now, into the walk table; a SELECT of its rows there.

    A cycle in the data keeps UNION ALL going for ever, so its rounds are counted; UNION meets no row twice.
    """
    walk = _Walk(owner, stage, tables, tables_of)
    columns = ", ".join(quote(c.name) for c in stage.columns)
    base = " UNION ALL ".join(walk.sql.base_rows())
    if walk.head.distinct:
        step = walk.sql.step(f"(SELECT {columns} FROM pgt_r)", {})
        query = f"pgt_r({columns}) AS (({base}) UNION {step}) SELECT {columns}, 1, 0 FROM pgt_r"
    else:
        depth = f"{quote(walk.head.reference)}.pgt_depth + 1"
        step = walk.sql.step(
            f"(SELECT {columns}, pgt_depth FROM pgt_r WHERE pgt_depth <= {MAX_DEPTH})", {}, more=[depth]
        )
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


class _Walk:
    """One change on its way through a recursive stage: round after round, into the walk table."""

    def __init__(self, owner: AsOwner, stage: Stage, tables: StageTables, tables_of: TablesOf) -> None:
        assert isinstance(stage.head, RecursiveHead)
        self.owner, self.stage, self.head, self.tables = owner, stage, stage.head, tables
        self.sql = RecursiveSql(stage, tables, tables_of)
        self.table, self.columns = self.sql.table, self.sql.columns
        self.types, self.names = self.sql.types, self.sql.names
        self.changed: list[int] = []
        """Numbers of the step's inputs that have changed."""
        self.changed_bases: list[int] = []
        """Numbers of the base member's parts that have changed."""
        self.round = 0
        """The number of the next round."""
        self.last = 0
        """Rows of the last round."""

    def look(self) -> bool:
        """Find out which inputs have changed."""
        items = [*self.head.bases, *self.head.inputs]
        if not items:
            return False
        probes = ", ".join(f"(SELECT count(*) FROM {self.sql.tables_of(i.stage).delta})" for i in items)
        (row,) = self.owner.rows(f"SELECT {probes}", ["int8"] * len(items))
        bases = len(self.head.bases)
        self.changed_bases = [i for i, new in enumerate(row[:bases]) if new]
        self.sql.sizes = {i: new for i, new in enumerate(row[bases:]) if new}
        self.changed = list(self.sql.sizes)
        return bool(self.changed_bases or self.changed)

    # -- UNION ALL -----------------------------------------------------------------------------------------

    def add_up(self) -> None:
        """Fill the walk with the netted change of every round."""
        parts = [self.sql.base_delta(i, "true", weighted=True) for i in self.changed_bases]
        if self.head.linear:
            for i in self.changed:
                # Those in front of the changed input are after its change already, those behind it still before.
                versions: dict[int, Version] = {j: "before" for j in self.changed if j > i}
                parts.append(self.sql.step(self.sql.whole(), {**versions, i: "delta"}, weight="1"))
        elif self.changed:
            parts.append(self.sql.step(self.sql.whole(), {}, weight="1"))
            parts.append(self.sql.step(self.sql.whole(), dict.fromkeys(self.changed, "old"), weight="-1"))
        new = total = self._add(" UNION ALL ".join(parts))
        limit: int | None = None
        while new:
            if total > _ALLOWANCE and limit is None:
                limit = _ALLOWANCE + _GROWTH * self.owner.value(f"SELECT count(*) FROM {self.tables.output}", "int8")
            if self.round > PATIENCE or (limit is not None and total > limit):
                raise _Unending
            new = self._add(self.sql.step(self._last_round(), {}, weight=f"{quote(self.head.reference)}.pgt_w"))
            total += new

    def _add(self, rows: str) -> int:
        """A new round of the rows with their weights added up; how many are left."""
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
        lost = [self.sql.base_delta(i, "w < 0") for i in self.changed_bases]
        if self.head.linear:
            for i in self.changed:
                versions: dict[int, Version] = {j: "either" for j in self.changed if j != i}
                lost.append(self.sql.step(self.sql.whole(), {**versions, i: "deleted"}))
        elif self.changed:
            # Per row of R: a derivation found elsewhere may rest on the very row that is to go.
            by = [f"{quote(self.head.reference)}.{quote(c.name)}" for c in self.stage.columns]
            old = self.sql.step(self.sql.whole(), dict.fromkeys(self.changed, "old"), more=by)
            new = self.sql.step(self.sql.whole(), {}, more=by)
            lost.append(f"SELECT {self.names} FROM (({old}) EXCEPT ALL ({new})) AS gone")
        suspicious = f"{self._in_result()} AND NOT {self._met('<')}"
        removed = new_rows = self._collect(lost, -1, suspicious)
        while new_rows:
            # What was derived with a row that is gone was found above; the rest rests on rows that are still there.
            new_rows = self._collect([self.sql.step(self._last_round(), {})], -1, suspicious)
        found = [self.sql.base_delta(i, "w > 0") for i in self.changed_bases]
        kept = self._kept() if removed else self.sql.whole()
        if removed:
            found += [*self._again_from_base(), *self._again_from_step(kept)]
        if self.head.linear:
            found += [self.sql.step(kept, {i: "inserted"}) for i in self.changed]
        elif self.changed:
            old = self.sql.step(kept, dict.fromkeys(self.changed, "old"))
            found.append(f"SELECT {self.names} FROM (({self.sql.step(kept, {})}) EXCEPT ({old})) AS came")
        missing = f"({self._met('<')} OR NOT {self._in_result()})" if removed else f"NOT {self._in_result()}"
        new_rows = self._collect(found, 1, missing)
        while new_rows:
            step = self.sql.step(self._last_round(), {})
            new_rows = self._collect([step], 1, f"{missing} AND NOT {self._met('>')}")

    def _collect(self, parts: Sequence[str], weight: int, condition: str) -> int:
        """A new round of the distinct rows of some SELECTs that satisfy a condition on the candidate `c`; how many."""
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

    # These are conditions on a candidate `c`. A scalar subquery cannot become a join, so each candidate costs one index
    # probe and R is never scanned.

    def _in_result(self) -> str:
        """Whether the candidate was in R before the change."""
        same = same_sql([f"t.{quote(c.name)}" for c in self.stage.columns], self.sql.of("c"), self.types)
        return (
            f"((SELECT true FROM {self.tables.output} AS t WHERE {table_hash(self.stage.columns, 't')} = c.h "
            f"AND {same} LIMIT 1) IS TRUE)"
        )

    def _met(self, sign: str) -> str:
        """Whether the walk has met the candidate already: '<' among the removed rows, '>' among the derived ones."""
        same = same_sql(self.sql.of("v"), self.sql.of("c"), self.types)
        return f"((SELECT true FROM {self.table} AS v WHERE v.h = c.h AND v.w {sign} 0 AND {same} LIMIT 1) IS TRUE)"

    def _kept(self) -> str:
        """R without the rows removed on suspicion."""
        names = [f"t.{quote(c.name)}" for c in self.stage.columns]
        same = same_sql(self.sql.of("v"), names, self.types)
        found = f"v.h = {table_hash(self.stage.columns, 't')} AND v.w < 0 AND {same}"
        return (
            f"(SELECT {', '.join(names)} FROM {self.tables.output} AS t "
            f"WHERE (SELECT true FROM {self.table} AS v WHERE {found} LIMIT 1) IS NOT TRUE)"
        )

    def _again_from_base(self) -> Iterator[str]:
        """Removed rows that the base member still gives."""
        for text in self.head.constants:
            same = same_sql(self.sql.of("v"), self.sql.of("b"), self.types)
            yield self._removed(f"EXISTS (SELECT FROM ({self.sql.constant(text)}) AS b WHERE {same})")
        for base in self.head.bases:
            values = [f"b.{quote(c.name)}" for c in base.columns]
            typed_ = [f"({v})::{t.sql}" for v, t in zip(values, self.types, strict=True)]
            found = same_sql(self.sql.of("v"), typed_, self.types)
            if [c.type for c in base.columns] == self.types:
                found = f"{table_hash(base.columns, 'b')} = v.h AND {found}"
            yield self._removed(
                f"(SELECT true FROM {self.sql.tables_of(base.stage).output} AS b WHERE {found} LIMIT 1)"
            )

    def _removed(self, condition: str) -> str:
        """The removed rows `v` that satisfy a condition."""
        return f"SELECT {', '.join(self.sql.of('v'))} FROM {self.table} AS v WHERE v.w < 0 AND {condition}"

    def _again_from_step(self, kept: str) -> Iterator[str]:
        """Removed rows that the recursive member still derives from the others.

        Where a result column is a plain column of the step, the removed row's value leads to the rows that could derive
        it, by an index. No index serves a comparison in which NULL equals NULL, so the removed rows are divided by
        which of these columns are NULL: each part is then compared by `=` or by IS NULL.
        """
        values = [f"({e})::{t.sql}" for e, t in zip(self.head.outputs, self.types, strict=True)]
        same = same_sql(self.sql.of("pgt_v"), values, self.types)
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
            removed = f"SELECT {self.names} FROM {self.table} WHERE {' AND '.join(of_pattern)}{at_most(count)}"
            step = self.sql.step(kept, {}, where=narrow, first=f"({removed}) AS pgt_v")
            yield f"SELECT {self.names} FROM ({step}) AS again"

    def _last_round(self) -> str:
        return self.sql.last_round(self.round - 1, self.last)
