"""FROM, JOIN and WHERE -> a draft tree of joins over leaves.

Subqueries without state of their own are inlined; all others, and unions below a join, become stages of their
own and appear here as leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from runnel.model.names import Name
from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import Constant, Relation, Source, StageRef
from runnel.sql import refuse, table_functions
from runnel.sql.ctes import Ctes, with_ctes
from runnel.sql.draft import DInner, DLeaf, DOuter, DTree, LeafDraft, NotDifferentiable, Scope, leaves, padded
from runnel.sql.filters import sunk, without_padding
from runnel.sql.rewrite.enclose import is_enclosed


@dataclass
class FromBuilder:
    """Builds the tree of one branch."""

    relation: Callable[[Name], Relation]
    stage: Callable[[exp.Query, Ctes], StageRef]
    describe: Callable[[str], tuple[Column, ...]]
    inline: bool = True
    """Whether subqueries without state are merged into the tree."""
    leaves: list[LeafDraft] = field(default_factory=list)

    def build(self, select: exp.Select, ctes: Ctes, *, nullable: bool = False) -> tuple[DTree, Scope]:
        """The tree of a SELECT's FROM and WHERE, and the names visible in it."""
        source = select.args.get("from_")
        if source is None:
            tree, scope = self.leaf(Constant("SELECT", ()), exp.TableAlias(this=exp.to_identifier("nothing")))
        else:
            tree, scope = self._item(source.this, ctes, nullable)
        tree = self._joins(tree, scope, select.args.get("joins") or [], ctes, nullable)
        where = select.args.get("where")
        if where is not None:
            tree = self._filtered(tree, [scope.resolve(c) for c in ex.conjuncts(where.this)])
        return tree, scope

    def _joins(self, tree: DTree, scope: Scope, joins: list[exp.Join], ctes: Ctes, nullable: bool) -> DTree:
        for join in joins:
            tree = self._join(tree, scope, join, ctes, nullable)
        return tree

    def _join(self, left: DTree, scope: Scope, join: exp.Join, ctes: Ctes, nullable: bool) -> DTree:
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        if kind not in ("", "INNER", "CROSS", "OUTER"):
            raise NotDifferentiable(f"{kind} JOIN")
        call = table_functions.parse(join.this)
        if call is not None:
            expanded = self._expand(call, left, scope, side, join.args.get("on"))
            if expanded is not None:
                return expanded
        right, right_scope = self._item(join.this, ctes, nullable or side in ("LEFT", "FULL"))
        using = [i.name for i in join.args.get("using") or []]
        if (join.args.get("method") or "").upper() == "NATURAL":
            raise NotDifferentiable("NATURAL JOIN")
        conditions: list[exp.Expr] = [
            exp.EQ(this=scope.find(exp.column(u)).copy(), expression=right_scope.find(exp.column(u)).copy())
            for u in using
        ]
        merged = {u: self._merge(u, side, scope, right_scope) for u in using}
        scope.absorb(right_scope)
        scope.merged.update(merged)
        conditions += [scope.resolve(c) for c in ex.conjuncts(join.args.get("on"))]
        if side == "":
            return self._filtered(_inner(left, right), conditions)
        if side == "RIGHT":
            left, right, side = right, left, "LEFT"
        for condition in conditions:
            if ex.mentions_clock(condition):
                raise NotDifferentiable("the current time in the condition of an outer join")
        if side == "LEFT":
            conditions = [c for c in conditions if not self._push(right, c)]
            return DOuter("left", left, right, conditions)
        return DOuter("full", left, right, conditions)

    def _expand(
        self, call: table_functions.Call, left: DTree, scope: Scope, side: str, on: exp.Expr | None
    ) -> DTree | None:
        """A function of one leaf's columns becomes part of that leaf; None when it depends on no column."""
        resolved = scope.resolve(call.call)
        used = ex.leaves_of(resolved)
        if not used:
            return None
        conditions = list(ex.conjuncts(on))
        if len(used) > 1 or used & padded(left) or side not in ("", "LEFT") or (side == "LEFT" and conditions):
            raise NotDifferentiable(f"the function {ex.pg(call.call)} of columns of several tables or of an outer join")
        leaf = self.leaves[next(iter(used))]
        function, names = table_functions.expansion(call, resolved, leaf, self.describe, optional=side == "LEFT")
        leaf.functions.append(function)
        columns = {n: leaf_column(leaf.id, c.name) for n, c in zip(names, function.columns, strict=True)}
        scope.add(call.alias.name, dict(columns))
        return self._filtered(left, [scope.resolve(c) for c in conditions])

    @staticmethod
    def _merge(name: str, side: str, left: Scope, right: Scope) -> exp.Expr:
        a, b = left.find(exp.column(name)), right.find(exp.column(name))
        if side == "FULL":
            return exp.Coalesce(this=a.copy(), expressions=[b.copy()])
        return (b if side == "RIGHT" else a).copy()

    def _filtered(self, tree: DTree, conditions: list[exp.Expr]) -> DTree:
        for condition in conditions:
            tree = without_padding(tree, condition)
        rest = [c for c in conditions if not self._push(tree, c)]
        for condition in rest:
            if ex.mentions_clock(condition):
                raise NotDifferentiable("the current time compared with columns of several tables")
            tree = sunk(tree, condition)
        return tree

    def _push(self, tree: DTree, condition: exp.Expr) -> bool:
        """Let PostgreSQL filter while reading, when the condition concerns one leaf that is not padded."""
        used = ex.leaves_of(condition)
        if len(used) != 1 or used & padded(tree) or not used <= set(leaves(tree)):
            return False
        leaf = self.leaves[next(iter(used))]
        (leaf.clock if ex.mentions_clock(condition) else leaf.filters).append(condition)
        return True

    def _item(self, item: exp.Expr, ctes: Ctes, nullable: bool) -> tuple[DTree, Scope]:
        if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            return self._table(item, ctes, nullable)
        if isinstance(item, exp.Subquery):
            if isinstance(item.this, (exp.Table, exp.Subquery)) and not item.alias:
                tree, scope = self._item(item.this, ctes, nullable)
                return self._joins(tree, scope, item.args.get("joins") or [], ctes, nullable), scope
            tree, scope = self._subquery(item.this, item.args.get("alias"), ctes, nullable, is_enclosed(item))
            return self._joins(tree, scope, item.args.get("joins") or [], ctes, nullable), scope
        constant = self._constant(item)
        if constant is None:
            raise NotDifferentiable(refuse.name_of(item))
        tree, scope = self.leaf(constant, exp.TableAlias(this=exp.to_identifier(item.alias, quoted=True)))
        return self._joins(tree, scope, item.args.get("joins") or [], ctes, nullable), scope

    def _constant(self, item: exp.Expr) -> Constant | None:
        """VALUES, or a function of constants: rows that never change."""
        if isinstance(item, exp.Values):
            bare = item.copy()
            bare.set("joins", None)
            text = f"SELECT * FROM {ex.pg(bare)}"
            return Constant(text, self.describe(text))
        call = table_functions.parse(item)
        if call is None or call.call.find(exp.Column):
            return None
        return Constant(*table_functions.constant_rows(call, self.describe))

    def _table(self, table: exp.Table, ctes: Ctes, nullable: bool) -> tuple[DTree, Scope]:
        if table.args.get("sample"):
            raise NotDifferentiable("TABLESAMPLE")
        if table.args.get("only"):
            raise NotDifferentiable("FROM ONLY")
        alias = table.args.get("alias")
        if not table.db and table.name in ctes:
            cte = ctes[table.name]
            scope_name = alias or exp.TableAlias(this=exp.to_identifier(table.name))
            tree, scope = self._subquery(cte.body, scope_name, cte.scope, nullable)
        else:
            relation = self.relation(Name(table.db or "pg_catalog", table.name))
            tree, scope = self.leaf(relation, alias or exp.TableAlias(this=exp.to_identifier(table.name)))
        return self._joins(tree, scope, table.args.get("joins") or [], ctes, nullable), scope

    def leaf(self, source: Source, alias: exp.TableAlias) -> tuple[DTree, Scope]:
        """A new leaf over a source."""
        leaf = LeafDraft(len(self.leaves), source, alias.name)
        self.leaves.append(leaf)
        names = [c.name for c in source.columns]
        visible = _renamed(names, alias)
        scope = Scope()
        scope.add(alias.name, {v: leaf_column(leaf.id, n) for v, n in zip(visible, names, strict=True)})
        return DLeaf(leaf.id), scope

    def _subquery(
        self, query: exp.Expr, alias: exp.TableAlias | None, ctes: Ctes, nullable: bool, enclosed: bool = False
    ) -> tuple[DTree, Scope]:
        if alias is None:
            raise NotDifferentiable("a subquery in FROM without a name")
        while isinstance(query, exp.Subquery) and not query.args.get("joins"):
            query = query.this
        if not isinstance(query, exp.Query):
            raise NotDifferentiable(refuse.name_of(query))
        inner = with_ctes(query, ctes)
        if self.inline and not enclosed and isinstance(query, exp.Select) and not refuse.is_stateful(query):
            mark = len(self.leaves)
            try:
                return self._inlined(query, alias, inner, nullable)
            except _NeedsStage:
                del self.leaves[mark:]
        return self.leaf(self.stage(query, ctes), alias)

    def _inlined(self, query: exp.Select, alias: exp.TableAlias, ctes: Ctes, nullable: bool) -> tuple[DTree, Scope]:
        refuse.check_block(query)
        tree, scope = self.build(query, ctes, nullable=nullable)
        inside = padded(tree)
        columns: dict[str, exp.Expr] = {}
        names = _renamed([e.alias_or_name for e in query.expressions], alias)
        for name, item in zip(names, query.expressions, strict=True):
            value = scope.resolve(item.unalias()).unnest()
            columns[name] = self._output(value, tree, inside, nullable)
        outer = Scope()
        outer.add(alias.name, columns)
        return tree, outer

    def _output(self, value: exp.Expr, tree: DTree, inside: frozenset[int], nullable: bool) -> exp.Expr:
        """A subquery's output column: a plain column, a derived column of one leaf, or an expression."""
        if isinstance(value, exp.Column):
            return value
        if ex.mentions_clock(value):
            raise NotDifferentiable("the current time as a value")
        used = ex.leaves_of(value)
        if len(used) == 1 and not used & inside:
            leaf = self.leaves[next(iter(used))]
            name = f"#{len(leaf.derived)}"
            leaf.derived[name] = value
            return leaf_column(leaf.id, name)
        if nullable:
            # An outer join above would have to replace the computed value by NULL; only a leaf can be padded.
            raise _NeedsStage
        return value


class _NeedsStage(Exception):
    """This subquery must be materialised."""


def _inner(left: DTree, right: DTree) -> DInner:
    children: list[DTree] = []
    conditions: list[exp.Expr] = []
    for side in (left, right):
        if isinstance(side, DInner):
            children += side.children
            conditions += side.conditions
        else:
            children.append(side)
    return DInner(children, conditions)


def _renamed(names: list[str], alias: exp.TableAlias) -> list[str]:
    given = [i.name for i in alias.args.get("columns") or []]
    return given + names[len(given) :]


def leaf_column(leaf: int, name: str) -> exp.Column:
    """A column of a leaf, quoted so that any name survives."""
    return exp.column(exp.to_identifier(name, quoted=True), table=f"l{leaf}")
