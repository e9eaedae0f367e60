"""How each aggregate of a block is kept: by counters where that is exact, else as a bag of its values.

| call | kept as |
|---|---|
| count, bool_and, bool_or, regr_count | counters |
| sum, avg, variances of numbers whose digits are bounded | counters |
| min, max | a bag, read at one end of an index |
| count(DISTINCT x) | a bag by equality, and a counter of its entries |
| every other one | a bag, over which PostgreSQL evaluates the call itself |

Calls over the same values share a bag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from sqlglot import exp

from runnel.errors import UserError
from runnel.model.types import DECIMAL_DIGITS, LONG, SUM_HEADROOM, Column, Form, PgType, decimal_form
from runnel.plan import expr as ex
from runnel.plan.stage import Aggregate, Bag, Strategy
from runnel.sql import registry
from runnel.sql.aggregates import BOOLEANS, IDEMPOTENT, STRICT, SUMS, VARIANCES
from runnel.sql.calls import Call, is_row, row_items
from runnel.sql.draft import NotDifferentiable, Scope, stand_in
from runnel.sql.lower import Lowering

# Sums of numerics with more fractional digits than this are recomputed from their values: a running sum would
# remember the scale of values that are gone, and avg() rounds by that scale.
MAX_SUM_SCALE = 12
CHUNK_DIGITS = 19
# Types made by users: they may lack a hash function, so only PostgreSQL's own aggregate can tell values apart.
_FIRST_USER_OID = 16384


@dataclass
class BranchInput:
    """One branch while its head is being built."""

    lowering: Lowering
    scope: Scope
    items: list[exp.Expr]
    """The select list over leaves."""


@dataclass
class Aggregation:
    """Collects what a block's aggregates need: inputs, partial sums and bags."""

    branches: list[BranchInput]
    keys: list[Column]
    inputs: list[list[exp.Expr]] = field(default_factory=list)
    """Per branch, over carried columns."""
    sums: list[list[tuple[int, int]]] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    bags: list[Bag] = field(default_factory=list)
    _known: dict[tuple[str, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs = [[] for _ in self.branches]
        self.sums = [[] for _ in self.branches]

    @property
    def lowering(self) -> Lowering:
        """The first branch's, which decides on types."""
        return self.branches[0].lowering

    def add_input(self, resolved: Sequence[exp.Expr], *, always: bool = False) -> int:
        """An input of the head, once."""
        text = tuple(ex.pg(e) for e in resolved)
        if text in self._known and not always:
            return self._known[text]
        for branch, expression, into in zip(self.branches, resolved, self.inputs, strict=True):
            into.append(branch.lowering.carry(expression))
        self.columns.append(self.lowering.column_of(resolved[0]))
        return self._known.setdefault(text, len(self.columns) - 1)

    def add(self, call: Call, direct: list[exp.Expr]) -> Aggregate:
        """An aggregate of the block; `direct` are its direct arguments over the group."""
        return self._rows(call) or self._counters(call) or self._probed(call) or self._evaluated(call, direct)

    def _resolved(self, expression: exp.Expr) -> list[exp.Expr]:
        return [b.scope.resolve(expression) for b in self.branches]

    # -- counters ------------------------------------------------------------------------------------------

    def _rows(self, call: Call) -> Aggregate | None:
        every = all(isinstance(a, exp.Literal) or is_row(a) for a in call.arguments)
        if call.function != "count" or call.distinct or call.condition is not None or not every:
            return None
        return Aggregate("count", "rows", False, (), self._type("count", exp.Star()), call.text)

    def _counters(self, call: Call) -> Aggregate | None:
        value = _counted(call)
        if value is None:
            return None
        arguments = self._resolved(call.filtered(value))
        strategy: Strategy = "count"
        bounds = None
        if call.function in BOOLEANS:
            strategy = "bools"
        elif call.function in SUMS:
            bounds = self._digits(arguments)
            if bounds is None or call.distinct:
                return None
            strategy = "sum"
        function = {"every": "bool_and", "regr_count": "count"}.get(call.function, call.function)
        squares = call.function in VARIANCES
        nan = strategy == "sum" and self.lowering.column_of(arguments[0]).type.family == "numeric"
        type_ = self._type(function, arguments[0])
        if any(b.lowering.value_leaf(a) is None for b, a in zip(self.branches, arguments, strict=True)):
            index = self.add_input(arguments)
            return Aggregate(function, strategy, False, (index,), type_, call.text, squares, nan)
        digits, scale = bounds or (0, 0)
        aggregate = Aggregate(
            function, strategy, False, (), type_, call.text, squares, nan,
            partial=len(self.sums[0]),
            chunks=chunk_factors(digits, scale),
            square_chunks=chunk_factors(2 * digits, 2 * scale),
        )  # fmt: skip
        for branch, argument, into in zip(self.branches, arguments, self.sums, strict=True):
            into.extend(_partials(branch.lowering, argument, aggregate, scale))
        return aggregate

    def _type(self, function: str, argument: exp.Expr) -> PgType:
        return self.lowering.column_of(exp.Anonymous(this=function, expressions=[argument.copy()])).type

    def _digits(self, arguments: list[exp.Expr]) -> tuple[int, int] | None:
        """(precision, scale) that hold every value, if they are known and the scale is small."""
        known = [b.lowering.bounds(a) for b, a in zip(self.branches, arguments, strict=True)]
        bounds = [b for b in known if b is not None and b[1] <= MAX_SUM_SCALE]
        if len(bounds) < len(known):
            return None
        scale = max(b[1] for b in bounds)
        return max(b[0] - b[1] for b in bounds) + scale, scale

    # -- bags ----------------------------------------------------------------------------------------------

    def _probed(self, call: Call) -> Aggregate | None:
        """min and max: an end of an index. count(DISTINCT): a counter of the bag's entries."""
        if call.function in ("min", "max") and call.sole is not None:
            bag = self._bag([call.filtered(call.sole)])
            return Aggregate(call.function, "bag", False, (), None, call.text, bag=bag)
        if call.function != "count" or not call.distinct:
            return None
        (argument,) = call.arguments
        row = is_row(argument)
        values = row_items(argument) if row else [call.filtered(argument)]
        condition = call.condition if row else None
        types = [self.lowering.column_of(self._resolved(v)[0]).type for v in values]
        if not all(t.is_enum or t.oid < _FIRST_USER_OID for t in types):
            return None
        # A row counts even when all of its fields are NULL.
        bag = self._bag(values, condition, nulls=row, images=False)
        return Aggregate("count", "bag", True, (), None, call.text, bag=bag)

    def _evaluated(self, call: Call, direct: list[exp.Expr]) -> Aggregate:
        """PostgreSQL's own aggregate over the bag."""
        values: list[exp.Expr] = []

        def value(node: exp.Expr) -> exp.Expr:
            bare = node.unnest()
            if bare not in values:
                values.append(bare)
            return exp.column(f"v{values.index(bare)}", table="b")

        given = iter(direct)
        body = ex.pg(call.over(value, lambda _: next(given)))
        # An argument that may raise must not be evaluated where the filter fails.
        guarded = [call.filtered(v) if ex.may_raise(v) else v for v in values]
        sole = STRICT if len(values) == len(call.arguments) else frozenset[str]()
        try:
            bag = self._bag(guarded, call.condition, nulls=call.function not in sole)
            self._check(body, self.bags[bag])
        except (NotDifferentiable, UserError) as refusal:
            entry = refusal.entry if isinstance(refusal, NotDifferentiable) else registry.AGGREGATE
            raise NotDifferentiable(entry, f"the aggregate {call.text} ({refusal})", call=call.function) from None
        alike = call.distinct or call.function in IDEMPOTENT
        return Aggregate(call.function, "bag", alike, (), None, call.text, bag=bag, call=body)

    def _bag(
        self,
        values: Sequence[exp.Expr],
        condition: exp.Expr | None = None,
        *,
        nulls: bool = False,
        images: bool = True,
    ) -> int:
        """A bag of values over the query's columns; equal ones are one."""
        indexes = tuple(self.add_input(self._resolved(v)) for v in values)
        columns = [self.columns[i] for i in indexes]
        passes = self.add_input(self._resolved(condition)) if condition is not None else None
        types = tuple(c.type for c in columns)
        by_image = images or all(t.is_plain for t in types)
        bag = Bag(indexes, types, tuple(c.collation for c in columns), passes, nulls, by_image)
        if bag not in self.bags:
            self.bags.append(bag)
        return self.bags.index(bag)

    def _check(self, body: str, bag: Bag) -> None:
        """Let PostgreSQL read the call over an empty bag."""
        values = [
            Column(f"v{i}", t, collation=c) for i, (t, c) in enumerate(zip(bag.types, bag.collations, strict=True))
        ]
        source = stand_in([*values, Column("n", PgType(20, -1, "int8"))], "b")
        if self.keys:
            keys = [Column(f"k{i}", c.type, collation=c.collation) for i, c in enumerate(self.keys)]
            source += f", {stand_in(keys, 'g')} GROUP BY {', '.join(f'g.k{i}' for i in range(len(keys)))}"
        self.lowering.types([f"({body}) IS NULL"], source)


def _counted(call: Call) -> exp.Expr | None:
    """The one value whose counters give the aggregate."""
    if call.function == "regr_count" and not call.distinct:
        tests = [exp.Is(this=exp.paren(a.copy()), expression=exp.Not(this=exp.Null())) for a in call.arguments]
        return exp.Case(ifs=[exp.If(this=exp.and_(*tests), true=exp.Literal.number(1))])
    if call.function == "count" and not call.distinct:
        return exp.Literal.number(1) if not call.arguments or is_row(call.arguments[0]) else call.arguments[0]
    return call.sole if call.function in BOOLEANS | SUMS else None


def _partials(lowering: Lowering, argument: exp.Expr, aggregate: Aggregate, scale: int) -> list[tuple[int, int]]:
    """What Spark adds up for one aggregate: count, then sum, squares and NaNs as the strategy needs."""
    leaf = lowering.value_leaf(argument)
    assert leaf is not None
    result = [lowering.push_number(leaf, argument, "({e} IS DISTINCT FROM NULL)::int4::int8", LONG)]
    if aggregate.strategy == "bools":
        result.append(lowering.push_number(leaf, argument, "{e}::int4::int8", LONG))
    if aggregate.strategy == "sum":
        value = "nullif({e}::numeric, 'NaN')" if aggregate.nan else "{e}::numeric"
        for chunk, form in _chunks(value, scale, len(aggregate.chunks)):
            result.append(lowering.push_number(leaf, argument, chunk, form))
        if aggregate.squares:
            for chunk, form in _chunks(f"({value} * {value})", 2 * scale, len(aggregate.square_chunks)):
                result.append(lowering.push_number(leaf, argument, chunk, form))
        if aggregate.nan:
            result.append(lowering.push_number(leaf, argument, "({e}::numeric = 'NaN')::int4::int8", LONG))
    return result


def chunk_factors(digits: int, scale: int) -> tuple[str, ...]:
    """What the parts of a number are worth. Numbers too long for Spark's decimals are added up in chunks of digits.

    >>> chunk_factors(20, 2), chunk_factors(38, 6)
    (('1',), ('0.000001', '10000000000000'))
    """
    if digits + SUM_HEADROOM <= DECIMAL_DIGITS:
        return ("1",)
    count = -(-digits // CHUNK_DIGITS)
    return tuple(format(Decimal(1).scaleb(CHUNK_DIGITS * i - scale), "f") for i in range(count))


def _chunks(value: str, scale: int, count: int) -> list[tuple[str, Form]]:
    """The parts of a value: SQL and form. `div` and `mod` are exact and keep the sign."""
    if count == 1:
        return [(value, decimal_form(scale))]
    whole = f"trunc({value} * 1{'0' * scale})"
    parts = []
    for i in range(count):
        rest = f"div({whole}, 1{'0' * CHUNK_DIGITS * i})" if i else whole
        parts.append((f"mod({rest}, 1{'0' * CHUNK_DIGITS})" if i < count - 1 else rest, decimal_form(0)))
    return parts
