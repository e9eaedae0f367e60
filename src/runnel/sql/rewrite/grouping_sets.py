"""ROLLUP, CUBE and GROUPING SETS as plain groups.

    SELECT t.a, t.b, sum(t.v), grouping(t.b) FROM t GROUP BY ROLLUP (t.a, t.b)
    ->
    SELECT u.k1, u.k2, sum(u.c1), CASE u.g WHEN 0 THEN 0 WHEN 1 THEN 1 END
      FROM (SELECT 0 AS g, t.a AS k1, t.b AS k2, t.v AS c1 FROM t
            UNION ALL SELECT 1, t.a, NULL, t.v FROM t) u GROUP BY u.g, u.k1, u.k2
    UNION ALL
    SELECT NULL, NULL, sum(t.v), 1 FROM t

Each row enters once per grouping set, with NULL for the keys that the set leaves out; aggregates read columns of their
own, so they see the real values. The empty set is one group even over no rows, hence a block without GROUP BY. What
comes after grouping (windows, DISTINCT, ORDER BY, LIMIT) moves to a block around the union.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context

Change = Callable[[exp.Expr], exp.Expr | None]
_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)
# CUBE over twelve keys would already be four thousand copies of the input.
_MOST_SETS = 64


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """Replace the grouping sets of a query."""
    return tr.change_queries(tree.copy(), lambda query: _replace(query, ctx))


def _replace(query: exp.Query, ctx: Context) -> exp.Query:
    group = query.args.get("group")
    if not isinstance(query, exp.Select) or not isinstance(group, exp.Group):
        return query
    if not any(isinstance(e, (*_SETS, exp.Tuple)) for e in group.expressions):
        return query
    sets = grouping_sets(group)
    if len(sets) > _MOST_SETS:
        raise NotDifferentiable(f"{len(sets)} grouping sets in one GROUP BY")
    if len(sets) > 1 and not all(tr.varies(k) for s in sets for k in s.values()):
        # The select list repeats it in another spelling, so it could not be told from an equal constant.
        raise NotDifferentiable("a constant as a key of grouping sets")
    upper = any(query.args.get(k) for k in ("distinct", "order", "limit", "offset")) or any(
        isinstance(n, exp.Window) for n in tr.block_nodes(query, "expressions")
    )
    if len(sets) == 1 and not _mentions_grouping(query):
        return _one_set(query, sets[0], ctx)
    place = query
    names = [tr.output_name(e) or f"c{i + 1}" for i, e in enumerate(query.expressions)]
    if not upper:
        block = query.copy()
        clause = block.args.get("with_")
        block.set("with_", None)
        tr.name_outputs(block, names)
        result = _Union(block, place, sets, ctx).build()
        result.set("with_", clause)
        return result
    outer, inner = _split(query, names, ctx)
    item = outer.args["from_"].this
    item.set("this", _Union(inner, place, sets, ctx).build())
    return outer


def grouping_sets(group: exp.Group) -> list[dict[str, exp.Expr]]:
    """The grouping sets of a GROUP BY clause, each as its keys by their text.

    >>> import sqlglot
    >>> clause = sqlglot.parse_one("SELECT 1 GROUP BY a, ROLLUP (b, (c, d))").args["group"]
    >>> [list(s) for s in grouping_sets(clause)]
    [['a', 'b', 'c', 'd'], ['a', 'b'], ['a']]
    """
    sets = [
        {_key(k): k for part in parts for k in part}
        for parts in itertools.product(*(_expand(e) for e in group.expressions))
    ]
    if group.args.get("all") is False:  # GROUP BY DISTINCT
        sets = list({frozenset(s): s for s in reversed(sets)}.values())[::-1]
    return sets


def _expand(item: exp.Expr) -> list[list[exp.Expr]]:
    if isinstance(item, exp.GroupingSets):
        return [s for e in item.expressions for s in _expand(e)]
    if isinstance(item, exp.Rollup):
        parts = [_elements(e) for e in item.expressions]
        return [[k for p in parts[:n] for k in p] for n in range(len(parts), -1, -1)]
    if isinstance(item, exp.Cube):
        parts = [_elements(e) for e in item.expressions]
        chosen = itertools.product((True, False), repeat=len(parts))
        return [[k for p, yes in zip(parts, c, strict=True) if yes for k in p] for c in chosen]
    return [_elements(item)]


def _elements(item: exp.Expr) -> list[exp.Expr]:
    if isinstance(item, exp.Tuple):
        return [e.unnest() for e in item.expressions]
    return [item.unnest()]


def _key(expression: exp.Expr) -> str:
    return tr.text(expression.unnest())


def _mentions_grouping(query: exp.Select) -> bool:
    return any(tr.function_name(n) == "grouping" for n in tr.block_nodes(query))


def _one_set(query: exp.Select, keys: dict[str, exp.Expr], ctx: Context) -> exp.Select:
    """A single grouping set is plain GROUP BY; the empty one is one group."""
    block = query.copy()
    block.set("group", exp.Group(expressions=[k.copy() for k in keys.values()]) if keys else None)
    if not keys and not tr.is_grouped(block, ctx):
        block.set("having", exp.Having(this=exp.true()))
    return block


def _rewritten(expression: exp.Expr, change: Change) -> exp.Expr:
    """`ex.rewrite` that keeps the names of select items."""
    if isinstance(expression, exp.Alias):
        return exp.alias_(ex.rewrite(expression.this, change), expression.args["alias"].copy(), copy=False)
    return ex.rewrite(expression, change)


def _split(query: exp.Select, names: list[str], ctx: Context) -> tuple[exp.Select, exp.Select]:
    """(the block above grouping, over a derived table; the grouped block that gives its keys and aggregates)."""
    alias = ctx.fresh("s")
    group = query.args["group"]
    keys = {_key(k) for e in group.expressions for k in tr.grouping_keys(e)}
    aliases = {i.alias for i in tr.leaf_items(query)}
    merged = tr.merged_columns(query)
    atoms: dict[str, exp.Expr] = {}

    def nested(node: exp.Expr) -> exp.Expr | None:
        if not isinstance(node, exp.Condition) or not (_key(node) in keys or _is_own(node, aliases, merged)):
            return None
        atoms.setdefault(_key(node), node.unnest())
        return tr.column(f"a{list(atoms).index(_key(node)) + 1}", alias)

    def change(node: exp.Expr) -> exp.Expr | None:
        if tr.is_query(node):
            _refuse_outer_aggregates(node, aliases, merged, ctx)
            return ex.rewrite(node, nested)
        if _is_aggregate(node.unnest(), ctx):
            atoms.setdefault(_key(node), node.unnest())
            return tr.column(f"a{list(atoms).index(_key(node)) + 1}", alias)
        return nested(node)

    items = [ex.rewrite(e.unalias(), change) for e in query.expressions]
    outer = exp.Select(expressions=[tr.named(i, n) for i, n in zip(items, names, strict=True)])
    for key in ("distinct", "order"):
        if query.args.get(key) is not None:
            outer.set(key, ex.rewrite(query.args[key], change))
    inner = query.copy()
    for key in ("with_", "limit", "offset"):
        outer.set(key, inner.args.get(key))
    for key in ("with_", "limit", "offset", "distinct", "order", "windows"):
        inner.set(key, None)
    inner.set("expressions", [tr.named(e, f"a{i + 1}") for i, e in enumerate(atoms.values())])
    if not atoms:
        inner.set("expressions", [tr.named(exp.Literal.number(1), "a1")])
    outer.set("from_", exp.From(this=tr.derived(inner, alias)))
    return outer, inner


def _is_aggregate(node: exp.Expr, ctx: Context) -> bool:
    """Whether a node is a whole aggregate call, or GROUPING (..)."""
    if isinstance(node, exp.Window):
        return False
    inner = node
    while isinstance(inner, (exp.Filter, exp.WithinGroup, exp.Dot)):
        inner = inner.expression if isinstance(inner, exp.Dot) else inner.this
    name = tr.function_name(inner)
    if name is None or not (ctx.is_aggregate(name) or name == "grouping"):
        return False
    return not tr.is_windowed(inner)


def _is_own(node: exp.Expr, aliases: set[str], merged: frozenset[str]) -> bool:
    """Whether a node is a column of the block's FROM clause."""
    return isinstance(node, exp.Column) and (
        node.table in aliases or (not node.table and node.name in merged and isinstance(node.this, exp.Identifier))
    )


def _refuse_outer_aggregates(query: exp.Expr, aliases: set[str], merged: frozenset[str], ctx: Context) -> None:
    """An aggregate in a subquery that reads only columns of the outer query is one of the outer query."""
    for call in tr.aggregates(query.walk(), ctx):
        columns = list(tr.whole_call(call).find_all(exp.Column))
        if columns and all(_is_own(c, aliases, merged) for c in columns):
            raise NotDifferentiable("an aggregate of the outer query inside a subquery")


@dataclass
class _Union:
    """The union of a block's grouping sets."""

    block: exp.Select
    place: exp.Expr
    sets: list[dict[str, exp.Expr]]
    ctx: Context
    columns: dict[str, exp.Column] = field(default_factory=dict)
    """What aggregates read, by text."""

    def build(self) -> exp.Query:
        self.keys: dict[str, exp.Expr] = {t: k for s in self.sets for t, k in s.items()}
        self.types = self._key_types()
        self.aliases = {i.alias for i in tr.leaf_items(self.block)}
        self.merged = tr.merged_columns(self.block)
        members: list[exp.Query] = []
        filled = [s for s in self.sets if s]
        if len(filled) == 1:
            members.append(self._direct(filled[0]))
        elif filled:
            members.append(self._grouped(filled))
        members += [self._direct(s) for s in self.sets if not s]
        result = members[0]
        for member in members[1:]:
            result = exp.Union(this=result, expression=member, distinct=False)
        return result

    def _key_types(self) -> dict[str, Column]:
        probe = exp.Select(expressions=[tr.named(k, f"c{i}") for i, k in enumerate(self.keys.values())])
        for key in ("from_", "joins"):
            value = self.block.args.get(key)
            if value is not None:
                probe.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())
        if self.place.args.get("with_"):
            probe.set("with_", self.place.args["with_"].copy())
        return dict(zip(self.keys, tr.described(probe, self.place, self.ctx), strict=True))

    def _null(self, text: str) -> exp.Expr:
        return tr.typed(exp.null(), self.types[text])

    # -- the sets with keys ------------------------------------------------------------------------------

    def _grouped(self, sets: list[dict[str, exp.Expr]]) -> exp.Select:
        alias = self.ctx.fresh("u")
        names = {text: f"k{i + 1}" for i, text in enumerate(self.keys)}
        used = {t for s in sets for t in s}
        dependent: dict[str, exp.Column] = {}

        def key_value(text: str) -> exp.Expr:
            return tr.column(names[text], alias) if text in used else self._null(text)

        def grouping(arguments: list[str]) -> exp.Expr:
            case = exp.Case(this=tr.column("g", alias), ifs=[])
            for number, keys in enumerate(sets):
                value = exp.Literal.number(_mask(arguments, keys))
                case.append("ifs", exp.If(this=exp.Literal.number(number), true=value))
            return case

        def read(column: exp.Column) -> exp.Expr:
            text = tr.text(column)
            self.columns.setdefault(text, column)
            return tr.column(f"c{list(self.columns).index(text) + 1}", alias)

        def depends(column: exp.Column) -> exp.Expr:
            dependent.setdefault(tr.text(column), column)
            return read(column)

        change = self._change(key_value, grouping, read, depends)
        result = exp.Select(expressions=[_rewritten(e, change) for e in self.block.expressions])
        having = self.block.args.get("having")
        if having is not None:
            result.set("having", ex.rewrite(having, change))
        members = [self._rows(number, keys, names, used) for number, keys in enumerate(sets)]
        union: exp.Query = members[0]
        for member in members[1:]:
            union = exp.Union(this=union, expression=member, distinct=False)
        result.set("from_", exp.From(this=tr.derived(union, alias)))
        group = [tr.column("g", alias), *(tr.column(n, alias) for t, n in names.items() if t in used)]
        result.set("group", exp.Group(expressions=[*group, *(read(c) for c in dependent.values())]))
        return result

    def _rows(self, number: int, keys: dict[str, exp.Expr], names: dict[str, str], used: set[str]) -> exp.Select:
        """The input of one grouping set."""
        items = [tr.named(exp.Literal.number(number), "g")]
        for text, name in names.items():
            if text in used:
                items.append(tr.named(self.keys[text] if text in keys else self._null(text), name))
        items += [tr.named(c, f"c{i + 1}") for i, c in enumerate(self.columns.values())]
        member = exp.Select(expressions=items)
        self._set_input(member)
        return member

    def _set_input(self, select: exp.Select) -> None:
        for key in ("from_", "joins", "where"):
            value = self.block.args.get(key)
            if value is not None:
                select.set(key, [v.copy() for v in value] if isinstance(value, list) else value.copy())

    # -- one set alone -----------------------------------------------------------------------------------

    def _direct(self, keys: dict[str, exp.Expr]) -> exp.Select:
        """A grouping set over the input itself; the empty one has no GROUP BY."""

        def key_value(text: str) -> exp.Expr:
            return keys[text] if text in keys else self._null(text)

        def grouping(arguments: list[str]) -> exp.Expr:
            return exp.cast(exp.Literal.number(_mask(arguments, keys)), "int")

        change = self._change(key_value, grouping, lambda column: column, lambda column: column)
        result = exp.Select(expressions=[_rewritten(e, change) for e in self.block.expressions])
        self._set_input(result)
        having = self.block.args.get("having")
        if having is not None:
            result.set("having", ex.rewrite(having, change))
        if keys:
            result.set("group", exp.Group(expressions=[k.copy() for k in keys.values()]))
        elif not tr.is_grouped(result, self.ctx):
            result.set("having", exp.Having(this=exp.true()))
        return result

    # -- expressions -------------------------------------------------------------------------------------

    def _change(
        self,
        key_value: Callable[[str], exp.Expr],
        grouping: Callable[[list[str]], exp.Expr],
        read: Callable[[exp.Column], exp.Expr],
        depends: Callable[[exp.Column], exp.Expr],
    ) -> Change:
        """How an expression over groups becomes one over the union."""

        def inside(node: exp.Expr) -> exp.Expr | None:
            if not _is_own(node, self.aliases, self.merged):
                return None
            assert isinstance(node, exp.Column)
            if isinstance(node.this, exp.Star):
                raise NotDifferentiable("a whole row in an aggregate over grouping sets")
            return read(node)

        def nested(node: exp.Expr) -> exp.Expr | None:
            if tr.function_name(node) == "grouping":
                return grouping([_key(a) for a in node.expressions])
            if isinstance(node, exp.Condition) and _key(node) in self.keys:
                return key_value(_key(node))
            if _is_own(node, self.aliases, self.merged):
                assert isinstance(node, exp.Column)
                return depends(node)
            return None

        def change(node: exp.Expr) -> exp.Expr | None:
            if tr.is_query(node):
                _refuse_outer_aggregates(node, self.aliases, self.merged, self.ctx)
                return ex.rewrite(node, nested)
            if tr.function_name(node) != "grouping" and _is_aggregate(node, self.ctx):
                return ex.rewrite(node, inside)
            return nested(node)

        return change


def _mask(arguments: list[str], keys: dict[str, exp.Expr]) -> int:
    """GROUPING's value: one bit per argument, set where the grouping set leaves it out."""
    return sum(1 << i for i, a in enumerate(reversed(arguments)) if a not in keys)
