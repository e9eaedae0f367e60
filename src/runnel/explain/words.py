"""Plans in the words of the query: leaf numbers, travelling forms and hidden columns as what they stand for.

(l0."customer_id")::int8   ->   o.customer_id
s.x1                       ->   sum(o.total), if that is what the stage below computes there
"""

from __future__ import annotations

import re
from typing import assert_never

import sqlglot
from sqlglot.errors import SqlglotError

from runnel.plan.stage import (
    Branch,
    GroupHead,
    Leaf,
    PartitionHead,
    Plan,
    RecursiveHead,
    RowsHead,
    Stage,
    StageRef,
    TableFunction,
)

# What rewrites call the tables that they make: pgt_<letter><number>.
_MADE = {
    "d": "the values that a subquery or a condition is asked about",
    "f": "a set-returning function",
    "g": "the groups, before what is computed from them",
    "l": "a subquery's rows",
    "m": "a member of a set operation",
    "n": "rows with their numbers",
    "o": "rows in order",
    "q": "a subquery's answers",
    "r": "a subquery's rows",
    "s": "the rows below",
    "u": "the members of a set operation or of grouping sets",
    "v": "a table inside a view",
}
_HIDDEN = re.compile(r"^(pgt_\w+|[xc]\d+)$")
_LONGEST = 60
_STRING = r"'(?:[^']|'')*'"
_IMPLIED = "TEXT|DECIMAL|BIGINT|INT|DOUBLE PRECISION"
_CASTS = re.compile(r'(::[\w ."\[\]]+(\([\d,]+\))?[\w \[\]]*)+')


def hidden(name: str) -> bool:
    """Whether a column's name was made by a rewrite."""
    return bool(_HIDDEN.match(name))


def made_for(alias: str) -> str | None:
    """What an alias that a rewrite made stands for.

    >>> made_for("pgt_q1"), made_for("orders")
    ("a subquery's answers", None)
    """
    found = re.match(r"^pgt_([a-z])\d+$", alias)
    return _MADE.get(found.group(1)) if found else None


def aliases(branch: Branch) -> dict[int, str]:
    """A name per leaf; two leaves of the same alias get numbers."""
    names = [leaf.alias or f"l{leaf.id}" for leaf in branch.leaves]
    result: dict[int, str] = {}
    for leaf, name in zip(branch.leaves, names, strict=True):
        earlier = sum(1 for n in names[: len(result)] if n == name)
        result[leaf.id] = f"{name}#{earlier + 1}" if names.count(name) > 1 else name
    return result


def tidy(sql: str) -> str:
    """SQL without the quotes and casts that PostgreSQL's print adds to everything.

    >>> tidy("SUM(o.total) <> CAST('x' AS TEXT)")
    "sum(o.total) <> 'x'"
    """
    sql = re.sub(rf"CAST\(\(?({_STRING}|\d+(?:\.\d+)?)\)? AS ({_IMPLIED})\)", r"\1", sql)
    sql = re.sub(rf"CAST\(({_STRING}) AS INTERVAL\)", r"interval \1", sql)
    parts = re.split(rf"({_STRING})", sql)
    return "".join(part if part.startswith("'") else _tidy_part(part) for part in parts)


def _tidy_part(sql: str) -> str:
    sql = re.sub(r'"([a-z_][a-z0-9_]*)"', r"\1", sql)
    sql = re.sub(r"CAST\(\(?([\w.]+)\)? AS ([A-Z][A-Z0-9 ]*)\)", lambda m: f"{m.group(1)}::{m.group(2).lower()}", sql)
    return re.sub(
        r"\b(?!(?:CAST|EXTRACT|IN|ANY|ALL|ROW|VALUES|FROM)\()([A-Z_]+)\(", lambda m: f"{m.group(1).lower()}(", sql
    )


def bare(sql: str) -> str:
    """A computed column without the form in which it travels to Spark.

    >>> bare('(l0."id")::int8'), bare("nullif((l0.total)::numeric, 'NaN')"), bare("trim_scale((l1.x)::numeric)::text")
    ('l0."id"', 'l0.total', 'l1.x')
    """
    while True:
        inner = _unwrapped(sql)
        if inner is None:
            return sql
        sql = inner


def _unwrapped(sql: str) -> str | None:
    for start in ("CASE WHEN isfinite(", "nullif(", "trim_scale("):
        if sql.startswith(start):
            return (
                _first(sql[len(start) - 1 :])
                .removesuffix("::numeric")
                .removesuffix(", 'NaN'")
                .removesuffix("::numeric")
            )
    if re.match(r"CASE WHEN \(.*\)::numeric = 'NaN' THEN 10*", sql):
        return _first(sql[len("CASE WHEN ") :])
    if sql.startswith("("):
        inside = _first(sql)
        rest = sql[len(inside) + 2 :]
        if not rest or _CASTS.fullmatch(rest):
            return inside.removesuffix(" + 0")
    return None


def _first(sql: str) -> str:
    """What stands in the parentheses that a text begins with."""
    depth = 0
    for i, character in enumerate(sql):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return sql[1:i]
    return sql


def is_constant(text: str) -> bool:
    """Whether a text mentions no column."""
    return re.search(r"[a-z_\"][\w\"#]*\.[a-z_\"#]|\(", re.sub(_STRING, "", text)) is None or text.startswith(
        "CAST(NULL"
    )


class Words:
    """The texts of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def over_leaves(self, sql: str, branch: Branch) -> str:
        """SQL over `l<n>.<column>` and `l<n>_<computed>` in the query's names."""
        names = aliases(branch)

        def computed(match: re.Match[str]) -> str:
            leaf = branch.leaves[int(match.group(1))]
            return bare(leaf.computed[int(match.group(2))].sql)

        def column(match: re.Match[str]) -> str:
            leaf = branch.leaves[int(match.group(1))]
            name = match.group(2).replace('""', '"')
            return self._leaf_column(leaf, names, name)

        sql = re.sub(r"\bl(\d+)_(\d+)\b", computed, sql)
        return tidy(re.sub(r'\bl(\d+)\."((?:[^"]|"")+)"', column, sql))

    def _leaf_column(self, leaf: Leaf, names: dict[int, str], name: str) -> str:
        if name.startswith("#f"):
            return _function_column(leaf, name)
        if isinstance(leaf.source, StageRef) and hidden(name):
            text = self.column(leaf.source.index, name)
            # A table of the same alias inside the stage would read as the one out here.
            ambiguous = any(re.search(rf"\b{re.escape(n)}\.", text) for n in names.values())
            if text != name and len(text) <= _LONGEST and not ambiguous and not is_constant(text):
                return text
        return f"{names[leaf.id]}.{name}"

    def column(self, index: int, name: str) -> str:
        """What a column of a stage holds."""
        stage = self.plan.stages[index]
        position = next((i for i, c in enumerate(stage.columns) if c.name == name), None)
        if position is None:
            return name
        text = self._output(stage, position)
        return name if text is None else text

    def _output(self, stage: Stage, position: int) -> str | None:
        match stage.head:
            case RowsHead():
                return self._input(stage, position)
            case GroupHead() as head:
                if not head.aggregates and head.outputs[position] == f"k{position}":
                    return self._input(stage, position)
                return self.over_group(head.outputs[position], stage)
            case PartitionHead() as head:
                items = select_items(head.items)
                return self.over_source(items[position], head) if position < len(items) else None
            case RecursiveHead():
                return None
            case unknown:
                assert_never(unknown)

    def _input(self, stage: Stage, number: int) -> str | None:
        """The head's input of that number, as the branches compute it."""
        found = [t for b in stage.branches if (t := self._branch_input(b, number)) is not None]
        telling = [t for t in found if not is_constant(t)] or found[:1]
        return " / ".join(dict.fromkeys(telling)) if telling else None

    def _branch_input(self, branch: Branch, number: int) -> str | None:
        if number >= len(branch.inputs):
            return None

        return self.over_carried(bare(branch.inputs[number]), branch)

    def over_carried(self, sql: str, branch: Branch) -> str:
        """SQL over the columns `c<i>` that leave Spark."""

        def carried(match: re.Match[str]) -> str:
            leaf, computed = branch.carried[int(match.group(1))]
            return bare(branch.leaves[leaf].computed[computed].sql)

        return self.over_leaves(re.sub(r"\bc(\d+)\b", carried, sql), branch)

    def keys(self, stage: Stage) -> list[str]:
        """The keys of a grouped stage."""
        assert isinstance(stage.head, GroupHead)
        texts = [self._input(stage, i) or f"k{i}" for i in range(len(stage.head.keys))]
        return [t for t in texts if not is_constant(t)] or texts

    def over_group(self, sql: str, stage: Stage) -> str:
        """SQL over keys `k<i>` and aggregates `a<j>`."""
        head = stage.head
        assert isinstance(head, GroupHead)
        aggregates = head.aggregates

        def part(match: re.Match[str]) -> str:
            number = int(match.group(2))
            if match.group(1) == "a":
                return aggregates[number].text if number < len(aggregates) else match.group(0)
            return self._input(stage, number) or match.group(0)

        return tidy(re.sub(r"\b([ka])(\d+)\b", part, bare(sql)))

    def over_source(self, sql: str, head: PartitionHead) -> str:
        """SQL over `s.<column>` of the stage below."""

        def column(match: re.Match[str]) -> str:
            name = match.group(1) or match.group(2)
            return self.column(head.source.index, name) if hidden(name) else name

        return tidy(re.sub(r'\bs\.(?:"([^"]+)"|(\w+))', column, sql))


def _function_column(leaf: Leaf, name: str) -> str:
    """A column of a function in FROM: its own name, or the call where a rewrite made the name."""
    own = name.split(".", 1)[-1]
    function = next((f for f in leaf.functions if any(c.name == name for c in f.columns)), None)
    if function is None or not hidden(own):
        return own
    call = called(function)
    return call if len(function.columns) == 1 else f"({call}).{own}"


def called(function: TableFunction) -> str:
    """The call of a function in FROM, over the leaf's own columns."""
    text = re.sub(r'\bf\d+\."#f\d+\.([^"]+)"', r"\1", re.sub(r"\br\.", "", function.sql))
    found = re.search(r" FROM (.+?)(?: WITH ORDINALITY)? AS f\(", text) or re.search(r" LATERAL (.+?) AS f\d*\(", text)
    return tidy(found.group(1) if found else text)


def select_items(text: str) -> list[str]:
    """The expressions of a select list."""
    try:
        select = sqlglot.parse_one(f"SELECT {text}", dialect="postgres")
        return [e.unalias().sql(dialect="postgres", normalize_functions=False) for e in select.expressions]
    except (SqlglotError, RecursionError):
        return []
