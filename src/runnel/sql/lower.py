"""A draft branch -> a branch: decide what PostgreSQL computes while reading, and what Spark joins by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sqlglot import exp

from runnel.errors import UserError
from runnel.model.names import quote
from runnel.model.types import BOOL, Column, Form
from runnel.plan import expr as ex
from runnel.plan.numeric import Bounds, bounds_of
from runnel.plan.stage import Computed, Equi, Inner, Leaf, LeafNode, Outer, Residual, Tree
from runnel.sql import forms, registry
from runnel.sql.draft import (
    DInner,
    DLeaf,
    DOuter,
    DTree,
    LeafDraft,
    NotDifferentiable,
    OuterCondition,
    leaves,
    padded,
    stand_in,
)

TypeOf = Callable[[list[str], str], tuple[Column, ...]]

_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.EQ: "=", exp.NEQ: "<>",
    exp.NullSafeEQ: "<=>",
}  # fmt: skip

# Parts of an expression that mean nothing by themselves.
_NOT_ALONE = (exp.If, exp.Any, exp.All, exp.Tuple, exp.Interval, exp.Star, exp.Distinct)


@dataclass
class Lowering:
    """Collects the computed columns of a branch's leaves."""

    leaves: list[LeafDraft]
    tree: DTree
    types: TypeOf
    computed: dict[int, list[Computed]] = field(default_factory=dict)
    carried: list[tuple[int, int]] = field(default_factory=list)
    late: list[exp.Expr] = field(default_factory=list)
    raising: set[int] = field(default_factory=set)
    """Leaves with an expression that may raise."""
    _type_cache: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.padded = padded(self.tree)

    # -- types ---------------------------------------------------------------------------------------------

    def column_of(self, expression: exp.Expr) -> Column:
        """The type (and collation) PostgreSQL gives to an expression over this branch's leaves."""
        expanded = self._expanded(expression)
        text = ex.pg(expanded)
        if text not in self._type_cache:
            used = ex.leaves_of(expanded) or {self.leaves[0].id}
            source = ", ".join(stand_in(self.leaves[i].columns, f"l{i}") for i in sorted(used))
            try:
                self._type_cache[text] = self.types([text], source)[0]
            except UserError:
                raise NotDifferentiable(registry.UNRULED, f"the expression {self._readable(expression)}") from None
        return self._type_cache[text]

    def bounds(self, expression: exp.Expr) -> Bounds | None:
        """Digits of a numeric expression, as far as they are known."""

        def column(node: exp.Column) -> Bounds | None:
            leaf = self.leaves[int(node.table[1:])]
            return next((c.type.bounds for c in leaf.columns if c.name == node.name), None)

        family = self.column_of(expression).type.family
        return bounds_of(self._expanded(expression), column) if family in ("int", "numeric") else None

    def _expanded(self, expression: exp.Expr) -> exp.Expr:
        for leaf_id in ex.leaves_of(expression):
            if self.leaves[leaf_id].derived:
                expression = self._expand_leaf(expression, self.leaves[leaf_id])
        return expression

    @staticmethod
    def _expand_leaf(expression: exp.Expr, leaf: LeafDraft) -> exp.Expr:
        def change(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Column) and node.table == f"l{leaf.id}" and node.name in leaf.derived:
                return ex.group(leaf.expand(leaf.derived[node.name]))
            return None

        return ex.rewrite(expression, change)

    def _readable(self, expression: exp.Expr) -> str:
        """The expression with the query's own table names."""

        def change(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, exp.Column) and ex.is_leaf_column(node):
                return exp.column(node.name, table=self.leaves[int(node.table[1:])].alias)
            return None

        return ex.pg(ex.rewrite(self._expanded(expression), change))

    # -- computed columns ----------------------------------------------------------------------------------

    def pushable(self, expression: exp.Expr, nullable: frozenset[int]) -> int | None:
        """The one leaf that PostgreSQL can evaluate the expression on, or None."""
        used = ex.leaves_of(expression)
        if len(used) != 1 or ex.mentions_clock(expression):
            return None
        (leaf,) = used
        if leaf in nullable and not ex.is_strict(expression):
            return None
        if ex.may_raise(self._expanded(expression)):
            self.raising.add(leaf)
        return leaf

    def value_leaf(self, expression: exp.Expr) -> int | None:
        """Like `pushable`, for values of the head: those must not raise on rows that a join would drop."""
        if len(self.leaves) > 1 and ex.may_raise(expression):
            return None
        return self.pushable(expression, self.padded)

    def add(self, leaf: int, sql: str, form: Form, column: Column) -> int:
        """Register a computed column, once."""
        known = self.computed.setdefault(leaf, [])
        new = Computed(sql, form, column.type, column.collation)
        if new not in known:
            known.append(new)
        return known.index(new)

    def carry(self, expression: exp.Expr) -> exp.Expr:
        """The expression over carried columns `c<i>`: its largest pushable parts are computed while reading."""

        def change(node: exp.Expr) -> exp.Expr | None:
            if isinstance(node, (exp.Identifier, exp.DataType, exp.Var)):
                return node
            if not isinstance(node, exp.Condition) or isinstance(node, _NOT_ALONE):
                return None
            leaf = self.value_leaf(node)
            if leaf is None:
                return None
            column = self.column_of(node)
            sql, form = forms.carried(ex.pg(self._expanded(node)), column.type)
            position = (leaf, self.add(leaf, sql, form, column))
            if position not in self.carried:
                self.carried.append(position)
            return exp.column(f"c{self.carried.index(position)}")

        if ex.mentions_clock(expression):
            raise NotDifferentiable(registry.CLOCK_VALUE)
        return ex.rewrite(expression, change)

    def push_number(self, leaf: int, expression: exp.Expr, template: str, form: Form) -> tuple[int, int]:
        """A column that Spark adds up."""
        sql = template.replace("{e}", f"({ex.pg(self._expanded(expression))})")
        column = self.column_of(expression)
        return leaf, self.add(leaf, sql, form, column)

    # -- the tree ------------------------------------------------------------------------------------------

    def lower_tree(self) -> Tree:
        """The tree with its conditions split into join keys and residuals."""
        return self._tree(self.tree, late_allowed=True)

    def _tree(self, tree: DTree, *, late_allowed: bool) -> Tree:
        """A condition on rows that every join above preserves may as well be evaluated at the end."""
        match tree:
            case DLeaf(leaf):
                return LeafNode(leaf)
            case DInner(children=children, conditions=conditions):
                lowered = tuple(self._tree(c, late_allowed=late_allowed) for c in children)
                nullable = padded(tree)
                groups = [set(leaves(c)) for c in children]
                equi, residual = self._conditions(conditions, nullable, groups, late_allowed=late_allowed)
                return Inner(lowered, equi, residual)
            case DOuter(kind=kind, left=left, right=right, conditions=conditions):
                nullable = padded(left) | padded(right)
                groups = [set(leaves(left)), set(leaves(right))]
                equi, residual = self._conditions(conditions, nullable, groups, late_allowed=False)
                preserved = self._tree(left, late_allowed=late_allowed and kind == "left")
                return Outer(kind, preserved, self._tree(right, late_allowed=False), equi, residual)

    def _conditions(
        self,
        conditions: list[exp.Expr],
        nullable: frozenset[int],
        groups: list[set[int]],
        *,
        late_allowed: bool,
    ) -> tuple[tuple[Equi, ...], tuple[Residual, ...]]:
        equi: list[Equi] = []
        residual: list[Residual] = []
        for condition in conditions:
            key = self._equi(condition, nullable, groups)
            if key is not None:
                equi.append(key)
                continue
            text = self._spark(condition, nullable)
            if text is not None:
                residual.append(Residual(text, ex.leaves_of(condition)))
            elif late_allowed:
                self.late.append(self.carry(condition))
            else:
                raise OuterCondition(registry.OUTER_CONDITION, f"the outer join condition {self._readable(condition)}")
        return tuple(equi), tuple(residual)

    def _equi(self, condition: exp.Expr, nullable: frozenset[int], groups: list[set[int]]) -> Equi | None:
        if not isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
            return None
        left, right = condition.left.unnest(), condition.right.unnest()
        a, b = self.pushable(left, nullable), self.pushable(right, nullable)
        if a is None or b is None or a == b or any({a, b} <= g for g in groups):
            return None
        types = self.column_of(left).type, self.column_of(right).type
        pair = forms.key_pair(*types)
        if pair is None:
            return None
        template, form, array_type = pair
        sql_a, sql_b = (ex.pg(self._expanded(e)) for e in (left, right))
        column = Column("", types[0])
        return Equi(
            left_leaf=a, left=self.add(a, template.replace("{e}", sql_a), form, column),
            right_leaf=b, right=self.add(b, template.replace("{e}", sql_b), form, column),
            array_type=array_type, left_sql=sql_a, right_sql=sql_b,
            null_safe=isinstance(condition, exp.NullSafeEQ),
        )  # fmt: skip

    def _spark(self, condition: exp.Expr, nullable: frozenset[int]) -> str | None:
        """Spark SQL for a condition, or None when Spark cannot evaluate it exactly as PostgreSQL does."""
        condition = condition.unnest()
        leaf = self.pushable(condition, nullable)
        if leaf is not None:
            column = self.column_of(condition)
            return f"l{leaf}_{self.add(leaf, ex.pg(self._expanded(condition)), BOOL, column)}"
        match condition:
            case exp.And() | exp.Or():
                left, right = self._spark(condition.left, nullable), self._spark(condition.right, nullable)
                word = "AND" if isinstance(condition, exp.And) else "OR"
                return f"({left} {word} {right})" if left and right else None
            case exp.Not():
                inner = self._spark(condition.this, nullable)
                return f"(NOT {inner})" if inner else None
            case exp.Is() if isinstance(condition.expression, exp.Null):
                test = self._is_null(condition.this, nullable)
                return f"(NOT {test})" if test and condition.args.get("negate") else test
            case exp.Is() if isinstance(condition.expression, exp.Boolean):
                inner = self._spark(condition.this, nullable)
                word = "IS NOT" if condition.args.get("negate") else "IS"
                return f"({inner} {word} {str(bool(condition.expression.this)).upper()})" if inner else None
            case exp.Boolean():
                return str(bool(condition.this)).lower()
            case exp.NullSafeNEQ():
                same = exp.NullSafeEQ(this=condition.this.copy(), expression=condition.expression.copy())
                inner = self._comparison(same, nullable)
                return f"(NOT {inner})" if inner else None
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.EQ() | exp.NEQ() | exp.NullSafeEQ():
                return self._comparison(condition, nullable)
            case _:
                return None

    def _is_null(self, operand: exp.Expr, nullable: frozenset[int]) -> str | None:
        leaf = self.pushable(operand.unnest(), nullable)
        if leaf is None:
            return None
        column = self.column_of(operand)
        sql, form = forms.carried(ex.pg(self._expanded(operand)), column.type)
        return f"(l{leaf}_{self.add(leaf, sql, form, column)} IS NULL)"

    def _comparison(self, condition: exp.Expr, nullable: frozenset[int]) -> str | None:
        assert isinstance(condition, exp.Binary)
        sides = [condition.left.unnest(), condition.right.unnest()]
        places = [self.pushable(s, nullable) for s in sides]
        if None in places:
            return None
        types = [self.column_of(s).type for s in sides]
        pair: tuple[str, Form] | None = forms.ordered_pair(*types)
        if pair is None and isinstance(condition, (exp.EQ, exp.NEQ, exp.NullSafeEQ)):
            key = forms.key_pair(*types)
            pair = key[:2] if key else None
        if pair is None:
            return None
        names = []
        for leaf, side, type_ in zip(places, sides, types, strict=True):
            assert leaf is not None
            sql = pair[0].replace("{e}", f"({ex.pg(self._expanded(side))})")
            names.append(f"l{leaf}_{self.add(leaf, sql, pair[1], Column('', type_))}")
        return f"({names[0]} {_COMPARISONS[type(condition)]} {names[1]})"

    # -- the leaves ----------------------------------------------------------------------------------------

    def lower_leaves(self) -> tuple[Leaf, ...]:
        """The leaves with everything that was collected; call last."""
        return tuple(self._leaf(leaf) for leaf in self.leaves)

    def _leaf(self, draft: LeafDraft) -> Leaf:
        filters = [self._expanded(f) for f in draft.filters]
        clock = [self._expanded(f) for f in draft.clock]
        computed = tuple(self.computed.get(draft.id, ()))
        known = {c.name for c in draft.source.columns}
        functions = tuple(draft.functions)
        texts = [*(ex.pg(f) for f in [*filters, *clock]), *(c.sql for c in computed), *(f.sql for f in functions)]
        uses = tuple(n for n in known if any(quote(n) in t for t in texts))
        return Leaf(
            id=draft.id,
            source=draft.source,
            alias=draft.alias,
            filters=tuple(ex.pg(f) for f in filters),
            clock_filters=tuple(ex.pg(ex.substitute_clock(f)) for f in clock),
            clock_negations=tuple(ex.negation(ex.substitute_clock(f)) for f in clock),
            computed=computed,
            may_raise=bool(functions) or draft.id in self.raising or any(ex.may_raise(f) for f in [*filters, *clock]),
            uses=tuple(sorted(uses)),
            functions=functions,
        )
