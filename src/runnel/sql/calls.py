"""An aggregate call taken apart: what varies from row to row, and what stays.

    string_agg(t.name, ', ' ORDER BY t.id) FILTER (WHERE t.paid)

has the values t.name and t.id, the filter t.paid, and over a bag of such values it is

    string_agg(b.v0, ', ' ORDER BY b.v1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.aggregates import bare_call, function_name
from runnel.sql.draft import NotDifferentiable

# Parts of a call around its arguments.
_STRUCTURE = (exp.WithinGroup, exp.Distinct, exp.Order, exp.Ordered, exp.Variadic)


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate call over the query's own columns."""

    node: exp.Expr
    """The call without its FILTER clause."""
    function: str
    """Its name, with the schema when it is not PostgreSQL's own."""
    arguments: tuple[exp.Expr, ...]
    """What is aggregated: of an ordered-set aggregate nothing, since its values are its ORDER BY."""
    distinct: bool
    condition: exp.Expr | None
    text: str

    @property
    def sole(self) -> exp.Expr | None:
        """The one argument, when there is exactly one and its type has a name."""
        return self.arguments[0] if len(self.arguments) == 1 and not is_row(self.arguments[0]) else None

    def filtered(self, value: exp.Expr) -> exp.Expr:
        """The value where the row passes the filter, else NULL."""
        if self.condition is None:
            return value
        return exp.Case(ifs=[exp.If(this=self.condition.copy(), true=value.copy())])

    def over(self, value: Callable[[exp.Expr], exp.Expr], direct: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
        """The call with every value, and every direct argument of an ordered-set aggregate, replaced."""
        call = bare_call(self.node)
        within = isinstance(self.node, exp.WithinGroup)

        def change(node: exp.Expr) -> exp.Expr | None:
            if node is call:
                return _with_direct(node, direct) if within else None
            if isinstance(node, _STRUCTURE) or node is call.parent:
                return None
            if isinstance(node, (exp.Identifier, exp.Star)):
                return node
            if is_row(node):
                return None
            if not node.find(exp.Column):
                if ex.mentions_clock(node):
                    raise NotDifferentiable("the current time as a value")
                return node
            return value(node)

        return ex.rewrite(self.node, change)


def is_row(node: exp.Expr) -> bool:
    """Whether a node makes a row without a type of its own: only its parts can be stored."""
    node = node.unnest()
    return isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and node.name.upper() == "ROW")


def row_items(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a row."""
    return list(node.unnest().expressions)


def parse_call(node: exp.Expr) -> Call:
    """Take an aggregate call apart."""
    text = ex.pg(node)
    condition = None
    if isinstance(node, exp.Filter):
        condition, node = node.expression.this, node.this
    call = bare_call(node)
    name = function_name(call)
    schema = call.parent.this if isinstance(call.parent, exp.Dot) else None
    listed = call.expressions if isinstance(call, exp.Anonymous) else [call.this, *call.expressions]
    arguments: list[exp.Expr] = []
    distinct = False
    for item in [] if isinstance(node, exp.WithinGroup) else [a for a in listed if a is not None]:
        argument = item.this if isinstance(item, exp.Order) else item
        if isinstance(argument, exp.Distinct):
            distinct = True
            arguments += argument.expressions
        elif not isinstance(argument, exp.Star):
            arguments.append(argument)
    function = f"{ex.pg(schema)}.{name}" if schema is not None else name
    return Call(node, function, tuple(arguments), distinct, condition, text)


def _with_direct(call: exp.Expr, direct: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    copy = call.copy()
    copy.set("expressions", [direct(e) for e in call.expressions])
    return copy
