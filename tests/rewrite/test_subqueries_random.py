"""Random subqueries in odd places: nested, negated, under OR and CASE, in HAVING, over outer joins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.rewrite.test_subqueries import compare, conn, fill, rewritten

__all__ = ["conn"]

TABLES = {"o": ["id", "a", "b"], "i": ["id", "k", "v"], "j": ["k", "v"], "e": ["k", "v"]}


@dataclass
class Generator:
    """Builds queries; `columns` are the integer columns visible at a place, innermost first."""

    chance: random.Random
    aliases: int = 0
    columns: list[list[str]] = field(default_factory=list)

    def pick(self, *options: str) -> str:
        return self.chance.choice(options)

    def column(self) -> str:
        level = 0
        while level + 1 < len(self.columns) and self.chance.random() < 0.4:
            level += 1
        return self.chance.choice(self.columns[level])

    def source(self) -> tuple[str, list[str]]:
        """A FROM clause and its columns."""
        self.aliases += 1
        alias, table = f"x{self.aliases}", self.pick("o", "i", "i", "j", "j", "e")
        columns = [f"{alias}.{c}" for c in TABLES[table]]
        text = f"{table} {alias}"
        if self.chance.random() < 0.3:
            self.aliases += 1
            other, joined = f"x{self.aliases}", self.pick("i", "j")
            right = [f"{other}.{c}" for c in TABLES[joined]]
            on = f"{self.chance.choice(columns)} = {self.chance.choice(right)}"
            text += f" {self.pick('JOIN', 'LEFT JOIN', 'LEFT JOIN', 'FULL JOIN')} {joined} {other} ON {on}"
            columns += right
        return text, columns

    def value(self, depth: int) -> str:
        kind = self.chance.random()
        if depth <= 0 or kind < 0.45:
            return self.column() if self.chance.random() < 0.8 else str(self.chance.randint(0, 3))
        if kind < 0.55:
            return f"({self.value(depth - 1)} + {self.value(depth - 1)})"
        if kind < 0.65:
            return f"coalesce({self.value(depth - 1)}, {self.value(depth - 1)})"
        if kind < 0.75:
            return f"CASE WHEN {self.condition(depth - 1)} THEN {self.value(depth - 1)} ELSE {self.value(0)} END"
        return self.scalar(depth - 1)

    def aggregate(self, depth: int) -> str:
        # An aggregate of outer columns only would belong to the outer query.
        argument = self.chance.choice(self.columns[0])
        if self.chance.random() < 0.3:
            argument = f"({argument} + {self.value(min(depth, 1))})"
        call = self.pick("count(*)", f"count({argument})", f"max({argument})", f"sum({argument})", f"min({argument})")
        return f"{call}::int" if not call.startswith("m") else call

    def scalar(self, depth: int) -> str:
        text, columns = self.source()
        self.columns.insert(0, columns)
        try:
            where = self.where(depth)
            kind = self.chance.random()
            if kind < 0.7:
                item = self.aggregate(depth)
                if self.chance.random() < 0.3:
                    item = f"coalesce({item}, {self.chance.choice(self.columns[1])})"
                having = f" HAVING count(*) > {self.chance.randint(0, 2)}" if self.chance.random() < 0.15 else ""
                return f"(SELECT {item} FROM {text}{where}{having})"
            item = self.value(0)
            return f"(SELECT {item} FROM {text}{where} ORDER BY 1, {', '.join(columns)} LIMIT 1)"
        finally:
            self.columns.pop(0)

    def where(self, depth: int) -> str:
        parts = []
        if len(self.columns) > 1 and self.chance.random() < 0.7:
            parts.append(f"{self.chance.choice(self.columns[0])} = {self.chance.choice(self.columns[1])}")
        if self.chance.random() < 0.5:
            parts.append(self.condition(depth))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def rows(self, depth: int) -> str:
        """A query of one column."""
        text, columns = self.source()
        self.columns.insert(0, columns)
        try:
            where = self.where(depth)
            kind = self.chance.random()
            key = self.chance.choice(columns)
            if kind < 0.15:
                having = f" HAVING {self.aggregate(0)} > {self.pick('0', '1', self.aggregate(0))}"
                return f"SELECT {key} FROM {text}{where} GROUP BY {key}{having}"
            if kind < 0.25:
                return f"SELECT {self.aggregate(0)} FROM {text}{where}"
            if kind < 0.3:
                return f"SELECT {key} FROM {text}{where} ORDER BY {', '.join(columns)} LIMIT 2"
            item = f"{'DISTINCT ' if kind < 0.4 else ''}{self.value(0)}"
            mine = f"SELECT {item} FROM {text}{where}"
        finally:
            self.columns.pop(0)
        if depth > 0 and self.chance.random() < 0.15:
            return f"({mine}) {self.pick('UNION', 'UNION ALL')} ({self.rows(depth - 1)})"
        return mine

    def condition(self, depth: int) -> str:
        kind = self.chance.random()
        if depth <= 0 or kind < 0.25:
            operator = self.pick("=", "<", ">=", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
            return f"{self.value(0)} {operator} {self.value(0)}"
        if kind < 0.35:
            return f"NOT ({self.condition(depth - 1)})"
        if kind < 0.5:
            return f"({self.condition(depth - 1)} {self.pick('AND', 'OR')} {self.condition(depth - 1)})"
        if kind < 0.55:
            return f"({self.condition(depth - 1)}) {self.pick('IS NULL', 'IS NOT TRUE')}"
        if kind < 0.6:
            return f"{self.value(depth - 1)} {self.pick('<', '=')} {self.value(depth - 1)}"
        if kind < 0.78:
            return f"{self.pick('', 'NOT ')}EXISTS ({self.rows(depth - 1)})"
        if kind < 0.9:
            return f"{self.value(0)} {self.pick('', 'NOT ')}IN ({self.rows(depth - 1)})"
        operator = self.pick("=", "<", ">=", "<>")
        return f"{self.value(0)} {operator} {self.pick('ANY', 'ALL')} ({self.rows(depth - 1)})"

    def query(self) -> str:
        text, columns = self.source()
        self.columns = [columns]
        if self.chance.random() < 0.2:
            key = self.chance.choice(columns)
            having = f"{self.aggregate(0)} > {self.scalar_over(key)}"
            return f"SELECT {key} AS g, {self.aggregate(1)} AS n FROM {text} GROUP BY {key} HAVING {having}"
        items = [f"{c} AS c{n}" for n, c in enumerate(columns)]
        if self.chance.random() < 0.6:
            items.append(f"({self.pick(self.value(2), self.condition(2))}) AS x")
        if self.chance.random() < 0.3:
            text += f", LATERAL ({self.rows(1)}) l(z)"
            items.append("l.z")
        return f"SELECT {', '.join(items)} FROM {text} WHERE {self.condition(3)}"

    def scalar_over(self, key: str) -> str:
        self.columns = [[key]]
        return self.scalar(1)


@pytest.mark.parametrize("batch", range(10))
def test_random_queries(conn: psycopg.Connection, batch: int) -> None:  # noqa: F811
    pairs = []
    for number in range(15):
        generator = Generator(random.Random(1000 * batch + number))
        pairs.append(rewritten(conn, generator.query()))
    for seed in range(7):
        fill(conn, seed)
        for pair in pairs:
            compare(conn, pair)
