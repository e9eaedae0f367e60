"""The SQL texts of a recursive stage: its two members over the versions of what they read.

    R = base UNION [ALL] step(R, T)

The base member reads tables and hidden stages, the recursive one (the step) joins R with inputs T. A change is followed
by asking the step again and again, each time with another relation in the place of R and with each T as it is now, as
it was, or as the change of it. `recursion.py` says which; here is how that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from runnel.apply.output import output_columns
from runnel.apply.tables import StageTables, TableSpec, group_by_sql, grouped_value, typed
from runnel.model.names import quote
from runnel.plan.stage import RecursiveHead, Stage

TablesOf = Callable[[int], StageTables]
"""The tables of a stage, by its number."""

Version = Literal["after", "before", "delta", "inserted", "deleted", "either", "old"]
"""How an input takes part in the step:

after       its rows now
before      its rows before the change, with weights `pgt_w`: those of now, and the change with the opposite sign
delta       its change, with weights `pgt_w`
inserted    the rows that came
deleted     the rows that went
either      its rows now and the rows that went: all that there was at some time
old         its rows before the change, as plain rows
"""
_WEIGHTED = ("before", "delta")


def walk_table(tables: StageTables) -> str:
    """The rows met so far: columns `o<i>`, weight `w`, the round they were met in, and for UNION their hash `h`."""
    return f"pg_temp.{quote(f'pgt_walk_{tables.prefix}')}"


def walk_temporary(stage: Stage, tables: StageTables) -> dict[str, TableSpec]:
    """The temporary table of a recursive stage."""
    columns = [typed(n, t, c.collation) for (n, t), c in zip(output_columns(stage), stage.columns, strict=True)]
    # Weights multiply from round to round; a walk in circles would leave int8 before it is noticed.
    return {walk_table(tables): TableSpec([*columns, "w numeric", "round int4", "h int8"], ("round", "h"))}


def at_most(rows: int) -> str:
    """A LIMIT that leaves all rows in, to tell the planner how few they are.

    Temporary tables have no statistics, and taken for large they would make it scan R.
    """
    return f" LIMIT {1 << max(rows - 1, 0).bit_length()}"


class RecursiveSql:
    """The texts of one recursive stage."""

    def __init__(self, stage: Stage, tables: StageTables, tables_of: TablesOf) -> None:
        assert isinstance(stage.head, RecursiveHead)
        self.stage, self.head, self.tables, self.tables_of = stage, stage.head, tables, tables_of
        self.table = walk_table(tables)
        self.columns = output_columns(stage)
        self.types = [t for _, t in self.columns]
        self.names = ", ".join(n for n, _ in self.columns)
        self.sizes: dict[int, int] = {}
        """Rows in the delta of each changed input of the step, by its number; unchanged ones are not in it."""

    def of(self, alias: str) -> list[str]:
        return [f"{alias}.{n}" for n, _ in self.columns]

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
        """The step, with a relation in the place of R and a version of each input, `after` where none is given.

        `weight` is that of R's rows, and asks for a column `w` of weights; `more` are further columns, `where` further
        conditions, and `first` is a relation to begin the FROM clause with.
        """
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
        """An input of the step as a relation."""
        item = self.head.inputs[number]
        tables = self.tables_of(item.stage)
        names = ", ".join(quote(c.name) for c in item.columns)
        new = ", ".join(f"o{i} AS {quote(c.name)}" for i, c in enumerate(item.columns))
        few = at_most(self.sizes.get(number, 0))
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
        rows = [self.constant(text) for text in self.head.constants]
        for base in self.head.bases:
            pairs = zip(base.columns, self.columns, strict=True)
            values = [f"({quote(c.name)})::{t.sql} AS {n}" for c, (n, t) in pairs]
            rows.append(f"SELECT {', '.join(values)} FROM {self.tables_of(base.stage).output}")
        return rows

    def constant(self, text: str) -> str:
        """A part of the base member that reads no table."""
        values = ", ".join(f"({n})::{t.sql} AS {n}" for n, t in self.columns)
        return f"SELECT {values} FROM ({text}) AS k({self.names})"

    def base_delta(self, number: int, condition: str, *, weighted: bool = False) -> str:
        """The change of a part of the base member: the rows whose weight `w` satisfies the condition."""
        values = ", ".join(f"({n})::{t.sql} AS {n}" for n, t in self.columns)
        delta = self.tables_of(self.head.bases[number].stage).delta
        return f"SELECT {values}{', w' if weighted else ''} FROM {delta} WHERE {condition}"

    def whole(self) -> str:
        """R before the change."""
        return f"(SELECT {', '.join(quote(c.name) for c in self.stage.columns)} FROM {self.tables.output})"

    def last_round(self, number: int, rows: int) -> str:
        """The `rows` rows of the walk that a round has met."""
        named = ", ".join(f"{n} AS {quote(c.name)}" for (n, _), c in zip(self.columns, self.stage.columns, strict=True))
        return f"(SELECT {named}, w AS pgt_w FROM {self.table} WHERE round = {number}{at_most(rows)})"
