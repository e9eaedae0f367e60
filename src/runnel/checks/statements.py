"""The SQL of a test: how many violations there are, and by how many a refresh has changed that.

A test counts something; zero is good. With n' and n the count after and before a refresh, and D its delta with weights:

| test | n | n' - n |
|---|---|---|
| not_null, accepted_values | rows that violate it | the weights of such rows in D, added up |
| relationships | rows that point at nothing | the same, with a look at the other table for each of them |
| unique | keys with more than one row | over the keys in D: [rows now > 1] - [rows now - weight in D > 1] |
| empty | the rows of a SELECT | not known: counted anew |

So the cost of all but the last is that of the delta. Rows of a key are found by an index on a hash of it, which serves
NULLs and every type (`runnel.checks.indexes`). The other table of a relationship changes behind the back of this: its
count is right at the next `whole`.
"""

from __future__ import annotations

from dataclasses import dataclass

from runnel.apply.tables import group_by_sql, grouped_value, hash_sql, same_sql
from runnel.catalog.owner import literal
from runnel.checks.tests import Test
from runnel.errors import UserError
from runnel.model.names import Name, quote
from runnel.model.types import Column, PgType


@dataclass(frozen=True, slots=True)
class Target:
    """The stream table that is tested."""

    id: int
    name: Name
    columns: tuple[Column, ...]

    def column(self, name: str) -> tuple[int, Column]:
        """A column and where it stands."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position, column
        raise UserError(
            f"{self.name} has no column {name}",
            hint=f"It has: {', '.join(c.name for c in self.columns)}.",
            sqlstate="42703",
        )


def whole_sql(target: Target, test: Test) -> str:
    """A SELECT of one number: all violations."""
    table = f"{target.name.sql()} AS t"
    match test.kind:
        case "unique":
            by = group_by_sql(keys(target, test, "t."))
            return f"SELECT count(*) FROM (SELECT 1 FROM {table} GROUP BY {by} HAVING count(*) > 1) AS v"
        case "not_null" | "accepted_values" | "relationships":
            column = f"t.{quote(target.column(test.columns[0])[1].name)}"
            return f"SELECT count(*) FROM {table} WHERE {_violates(test, column)}"
        case "empty":
            # The line break ends a comment.
            return f"SELECT count(*) FROM ({test.select}\n) AS v"


def change_sql(target: Target, test: Test, delta: str) -> str | None:
    """A SELECT of one number: by how many violations a delta (columns o<i>, weight w) has changed their count."""
    match test.kind:
        case "unique":
            own, delta_keys = keys(target, test, "t."), _delta_keys(target, test)
            types = [type_ for _, type_ in own]
            same = same_sql([n for n, _ in own], [f"k.k{i}" for i in range(len(own))], types)
            hashed = [(f"k.k{i}", type_) for i, type_ in enumerate(types)]
            values = ", ".join(f"{grouped_value(n, t)} AS k{i}" for i, (n, t) in enumerate(delta_keys))
            return (
                f"SELECT coalesce(sum((n.rows > 1)::int - (n.rows - k.w > 1)::int), 0)::int8 FROM ("
                f"SELECT {values}, sum(d.w) AS w FROM {delta} AS d GROUP BY {group_by_sql(delta_keys)} "
                f"HAVING sum(d.w) <> 0) AS k, LATERAL (SELECT count(*) AS rows FROM {target.name.sql()} AS t "
                f"WHERE {hash_sql(own)} = {hash_sql(hashed)} AND {same}) AS n"
            )
        case "not_null" | "accepted_values" | "relationships":
            position, _ = target.column(test.columns[0])
            return f"SELECT coalesce(sum(d.w), 0)::int8 FROM {delta} AS d WHERE {_violates(test, f'd.o{position}')}"
        case "empty":
            return None


def _violates(test: Test, column: str) -> str:
    match test.kind:
        case "not_null":
            return f"{column} IS NULL"
        case "accepted_values":
            return f"({column})::text <> ALL (ARRAY[{', '.join(literal(value) for value in test.values)}]::text[])"
        case _:
            assert test.to is not None
            other = f"SELECT FROM {test.to.sql()} AS o WHERE o.{quote(test.field)} = {column}"
            return f"{column} IS NOT NULL AND NOT EXISTS ({other})"


def keys(target: Target, test: Test, prefix: str) -> list[tuple[str, PgType]]:
    """The columns of a test, and their types."""
    found = [target.column(name)[1] for name in test.columns]
    return [(prefix + quote(column.name), column.type) for column in found]


def _delta_keys(target: Target, test: Test) -> list[tuple[str, PgType]]:
    found = [target.column(name) for name in test.columns]
    return [(f"d.o{position}", column.type) for position, column in found]
