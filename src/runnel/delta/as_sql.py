"""A part of a delta as one SELECT of PostgreSQL, for rows that all are PostgreSQL's own.

What `runnel.spark.evaluate` does with DataFrames, over the SELECTs of the leaves: the same join trees and weights.
PostgreSQL pulls the nested SELECTs up and orders the joins itself.

A Z-set is a SELECT with the value columns `l<leaf>_<i>` and, unless every row counts once, a weight `w`:

    SELECT l0_0, l1_0, x0.w AS w FROM (..) AS x0, (..) AS x1 WHERE l0_1 = l1_1
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runnel.delta.parts import Anti, DeltaTree, Part
from runnel.delta.restrict import joins
from runnel.model.types import VALUE
from runnel.plan.stage import Branch, Computed, Equi, Inner, Leaf, LeafNode, Outer, Residual, Tree, carried_name

PG_TYPES = {"long": "int8", "bool": "bool", "text": "text", "decimal": "numeric", "double": "float8"}
"""The type of a form's values in PostgreSQL."""

_SHORT = frozenset({"date", "timestamp", "timestamptz", "uuid"})
"""Families of types that are grouped far sooner than their texts, and whose equal values have one text."""

_AS_TEXT = re.compile(r"\((.*)\)::text", re.DOTALL)
_WIDENED = re.compile(r'\((\w+\."(?:[^"]|"")+")\)::int8')
_SMALL_INTEGERS = frozenset({21, 23})
"""int2 and int4, by their oids."""

_COLUMN = re.compile(r"\bl(\d+)_(\d+)\b")


Sum = Callable[[str], str]
"""SQL of a sum over rows, given the SQL of a row's weight."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A Z-set as a SELECT."""

    text: str
    columns: tuple[str, ...]
    """The value columns."""
    weighted: bool
    """Whether it has a column `w`; if not, every row counts once."""

    @property
    def weight(self) -> str:
        """SQL of a row's weight."""
        return "w" if self.weighted else "1"


def with_values(branch: Branch) -> Branch:
    """The branch with columns as they are, where another form is only how they travel.

    That is text which nothing compares or adds, and small integers: compared as they are, an index finds them.

    >>> from runnel.model.types import TEXT, PgType
    >>> from runnel.plan.stage import StageRef
    >>> day = Computed("(l0.at)::text", TEXT, PgType(1082, -1, "date"))
    >>> rows = Branch(LeafNode(0), (Leaf(0, StageRef(0, ()), computed=(day,)),), ((0, 0),), ())
    >>> with_values(rows).leaves[0].computed[0].sql
    'l0.at'
    """
    compared, added = _compared_columns(branch.tree), set(branch.sums)

    def as_it_is(place: tuple[int, int], computed: Computed) -> Computed:
        if place in added:
            return computed
        return _integer(computed) if place in compared else _integer(_value(computed))

    leaves = [
        replace(leaf, computed=tuple(as_it_is((leaf.id, i), c) for i, c in enumerate(leaf.computed)))
        for leaf in branch.leaves
    ]
    return replace(branch, leaves=tuple(leaves))


def _value(computed: Computed) -> Computed:
    found = _AS_TEXT.fullmatch(computed.sql)
    if found is None or computed.form.kind != "text" or computed.type.family not in _SHORT:
        return computed
    return replace(computed, sql=found[1], form=VALUE)


def _integer(computed: Computed) -> Computed:
    """A column of small integers as it is: PostgreSQL compares them with any other, and the load widens them.

    >>> from runnel.model.types import LONG, PgType
    >>> _integer(Computed('(l0."id")::int8', LONG, PgType(23, -1, "integer"))).sql
    'l0."id"'
    >>> _integer(Computed('(l0."a")::int8 + (l0."b")::int8', LONG, PgType(23, -1, "integer"))).sql
    '(l0."a")::int8 + (l0."b")::int8'
    """
    found = _WIDENED.fullmatch(computed.sql)
    if found is None or computed.form.kind != "long" or computed.type.oid not in _SMALL_INTEGERS:
        return computed
    return replace(computed, sql=found[1])


def _compared_columns(tree: Tree) -> set[tuple[int, int]]:
    """(leaf, computed) of whatever a join looks at."""
    found: set[tuple[int, int]] = set()
    for join in joins(tree):
        for key in join.equi:
            found |= {(key.left_leaf, key.left), (key.right_leaf, key.right)}
        for residual in join.residual:
            found |= {(int(leaf), int(index)) for leaf, index in _COLUMN.findall(residual.sql)}
    return found


def plain_sums(branch: Branch) -> tuple[Sum, ...]:
    """The sums of the columns that are there to be added up."""
    return tuple(_sum_of(branch.leaves[leaf].column(index)) for leaf, index in branch.sums)


def _sum_of(value: str) -> Sum:
    return lambda weight: f"sum({value})" if weight == "1" else f"sum(({weight}) * {value})"


def branch_sql(
    branch: Branch, number: int, part: Part, leaves: Mapping[int, Selected], sums: Sequence[Sum] | None
) -> str:
    """The load rows of a part: branch, carried columns, weight and weighted sums, by the names of the load table.

    With `sums`, equal rows are added up. Texts are told apart by their bytes, whatever their collation says.
    """
    rows = tree_sql(branch, part.tree, leaves)
    weight = rows.weight if part.sign == 1 else f"-({rows.weight})"
    first = f"{number}::int8 AS b"
    carried = [
        f"{_plain(branch.leaves[leaf], index)} AS {carried_name(number, i)}"
        for i, (leaf, index) in enumerate(branch.carried)
    ]
    if sums is None:
        values = [branch.leaves[leaf].column(index) for leaf, index in branch.sums]
        each = [f"{weight} * {value} AS s{k}" for k, value in enumerate(values)]
        return f"SELECT {', '.join([first, *carried, f'({weight})::int8 AS w', *each])} FROM ({rows.text}) AS t"
    positions = ", ".join(str(i + 2) for i in range(len(carried)))
    # Without columns to group by there would be a row even over nothing.
    ending = f"GROUP BY {positions}" if positions else "HAVING count(*) > 0"
    total = "count(*)" if weight == "1" else f"sum({weight})::int8"
    items = ", ".join([first, *carried, f"{total} AS w", *(f"{add(weight)} AS s{k}" for k, add in enumerate(sums))])
    # A value that several sums take is computed once: OFFSET keeps PostgreSQL from putting its expression into each.
    once = " OFFSET 0" if sums else ""
    return f"SELECT {items} FROM ({rows.text}{once}) AS t {ending}"


def _plain(leaf: Leaf, index: int) -> str:
    name = leaf.column(index)
    return f'{name} COLLATE "C"' if leaf.computed[index].form.kind == "text" else name


def tree_sql(branch: Branch, tree: DeltaTree, leaves: Mapping[int, Selected]) -> Selected:
    """A tree's rows.

    >>> from runnel.plan.stage import Branch, Equi, Inner, LeafNode
    >>> key = Equi(0, 0, 1, 0, "int8", "", "")
    >>> a, b = Selected("A", ("l0_0",), True), Selected("B", ("l1_0",), False)
    >>> tree_sql(Branch(LeafNode(0), (), (), ()), Inner((LeafNode(0), LeafNode(1)), (key,)), {0: a, 1: b}).text
    'SELECT l0_0, l1_0, x0.w AS w FROM (A) AS x0, (B) AS x1 WHERE l0_0 = l1_0'
    """
    match tree:
        case LeafNode(leaf):
            return leaves[leaf]
        case Inner(children=children, equi=equi, residual=residual):
            return _inner([tree_sql(branch, c, leaves) for c in children], _condition(equi, residual))
        case Outer(kind=kind, left=left, right=right, equi=equi, residual=residual):
            a, b = tree_sql(branch, left, leaves), tree_sql(branch, right, leaves)
            condition = _condition(equi, residual)
            if not b.weighted and (kind == "left" or not a.weighted):
                return _outer(kind, a, b, condition)
            parts = [_inner([a, b], condition), _anti(branch, a, b, right, condition, _compared(b, equi, residual))]
            if kind == "full":
                parts.append(_anti(branch, b, a, left, condition, _compared(a, equi, residual)))
            return union(parts)
        case Anti(left=left, right=right, equi=equi, residual=residual):
            a, b = tree_sql(branch, left, leaves), tree_sql(branch, right, leaves)
            return _anti(branch, a, b, right, _condition(equi, residual), _compared(b, equi, residual))


def union(parts: Sequence[Selected]) -> Selected:
    """All together, each row with its weight."""
    columns = parts[0].columns
    texts = [f"SELECT {', '.join([*columns, f'{p.weight} AS w'])} FROM ({p.text}) AS u" for p in parts]
    return Selected(" UNION ALL ".join(texts), columns, weighted=True)


def negated(rows: Selected) -> Selected:
    """The same rows with opposite weights."""
    items = ", ".join([*rows.columns, f"-({rows.weight}) AS w"])
    return Selected(f"SELECT {items} FROM ({rows.text}) AS n", rows.columns, weighted=True)


def _condition(equi: Sequence[Equi], residual: Sequence[Residual]) -> str:
    keys = [
        f"l{e.left_leaf}_{e.left} {'IS NOT DISTINCT FROM' if e.null_safe else '='} l{e.right_leaf}_{e.right}"
        for e in equi
    ]
    # A residual is made of names, comparisons and boolean operators: but for one all are written alike.
    return " AND ".join([*keys, *(r.sql.replace("<=>", "IS NOT DISTINCT FROM") for r in residual)])


def _inner(inputs: Sequence[Selected], condition: str) -> Selected:
    if len(inputs) == 1 and not condition:
        return inputs[0]
    columns = tuple(c for each in inputs for c in each.columns)
    weights = [f"x{i}.w" for i, each in enumerate(inputs) if each.weighted]
    items = ", ".join([*columns, *([f"{' * '.join(weights)} AS w"] if weights else [])]) or "1 AS nothing"
    source = ", ".join(f"({each.text}) AS x{i}" for i, each in enumerate(inputs))
    where = f" WHERE {condition}" if condition else ""
    return Selected(f"SELECT {items} FROM {source}{where}", columns, weighted=bool(weights))


def _outer(kind: str, left: Selected, right: Selected, condition: str) -> Selected:
    columns = left.columns + right.columns
    items = ", ".join([*columns, *(["a.w AS w"] if left.weighted else [])]) or "1 AS nothing"
    source = f"({left.text}) AS a {kind.upper()} JOIN ({right.text}) AS b ON {condition or 'true'}"
    return Selected(f"SELECT {items} FROM {source}", columns, weighted=left.weighted)


def _compared(rows: Selected, equi: Sequence[Equi], residual: Sequence[Residual]) -> tuple[str, ...]:
    ends = {f"l{e.left_leaf}_{e.left}" for e in equi} | {f"l{e.right_leaf}_{e.right}" for e in equi}
    return tuple(c for c in rows.columns if residual or c in ends)


def _anti(
    branch: Branch, left: Selected, right: Selected, padded: DeltaTree, condition: str, compared: Sequence[str]
) -> Selected:
    """Rows of left without a match, padded: weights on the right are added first, so what is gone does not match."""
    present = right.text
    if right.weighted:
        listed = ", ".join(compared) or "1 AS nothing"
        grouped = f" GROUP BY {', '.join(compared)}" if compared else ""
        present = f"SELECT {listed} FROM ({right.text}) AS g{grouped} HAVING sum(w) > 0"
    padding = [f"NULL::{pg_type(computed)} AS {name}" for name, computed in _computed(branch, padded).items()]
    columns = left.columns + right.columns
    items = ", ".join([*left.columns, *padding, *(["a.w AS w"] if left.weighted else [])]) or "1 AS nothing"
    matched = f"SELECT FROM ({present}) AS b{f' WHERE {condition}' if condition else ''}"
    return Selected(
        f"SELECT {items} FROM ({left.text}) AS a WHERE NOT EXISTS ({matched})", columns, weighted=left.weighted
    )


def pg_type(computed: Computed) -> str:
    """The type of a leaf's column in PostgreSQL."""
    return computed.type.sql if computed.form.kind == "value" else PG_TYPES[computed.form.kind]


def _computed(branch: Branch, tree: DeltaTree) -> dict[str, Computed]:
    """The columns of a tree's leaves, in the order of `tree_sql`."""
    leaves = [branch.leaves[leaf] for leaf in _in_order(tree)]
    return {leaf.column(i): computed for leaf in leaves for i, computed in enumerate(leaf.computed)}


def _in_order(tree: DeltaTree) -> list[int]:
    match tree:
        case LeafNode(leaf):
            return [leaf]
        case Inner(children=children):
            return [leaf for child in children for leaf in _in_order(child)]
        case Outer(left=left, right=right) | Anti(left=left, right=right):
            return [*_in_order(left), *_in_order(right)]
