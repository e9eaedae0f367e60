"""EXISTS with an inequality of integers -> one row per key, which says whether its values are all the same.

    EXISTS (SELECT 1 FROM i WHERE i.k = o.a AND i.v <> o.b)
    ->  JOIN (SELECT i.k AS pgt_k0,
                     CASE WHEN var_pop(i.v) = 0 THEN avg(i.v)::bigint WHEN var_pop(i.v) > 0 THEN 0 END AS pgt_x0,
                     CASE WHEN var_pop(i.v) = 0 THEN avg(i.v)::bigint WHEN var_pop(i.v) > 0 THEN 1 END AS pgt_y0
              FROM i GROUP BY i.k) q ON q.pgt_k0 = o.a
        WHERE q.pgt_x0 <> o.b OR q.pgt_y0 <> o.b

Among the values under a key is one that differs from b exactly if they are several, or their only one differs from b.
Where they are several, x and y are any two different numbers, one of which differs from b whatever b is. Where b
is NULL, or there are no values, both comparisons are NULL, as they should be.

That they are all the same is known from counters: n * sum(v^2) >= sum(v)^2, and equal only then (Cauchy and Schwarz).
The variance is this difference, of integers exactly. So there is no list of values or of pairs, and nothing to join: a
row that comes or goes moves three numbers of its key, and the answer rarely.

A second EXISTS over the same table and keys that only has more conditions needs no groups of its own: it counts in the
same ones, by FILTER.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from runnel.sql.rewrite.subqueries import build, flat, queries
from runnel.sql.rewrite.subqueries.block import Block
from runnel.sql.rewrite.subqueries.correlation import Key, split
from runnel.sql.rewrite.subqueries.scopes import defined_by, has_query, name_of

_INTEGERS = frozenset({20, 21, 23})
"""The oids of smallint, integer and bigint, whose inequality is PostgreSQL's own."""


@dataclass(frozen=True)
class Question:
    """What an EXISTS of this form asks of a table."""

    table: exp.Table
    keys: tuple[tuple[exp.Column, Key], ...]
    """Columns of the table, and what each has to equal."""
    conditions: tuple[exp.Expr, ...]
    """On rows of the table."""
    value: exp.Column
    other: exp.Column
    """What the value has to differ from."""
    gate: tuple[exp.Expr, ...]


@dataclass
class Groups:
    """A table by its keys, joined to a block."""

    alias: str
    first: Question
    """Who asked first: its conditions decide which rows are in the groups."""
    questions: int = 1


def condition(query: exp.Query, block: Block, *, required: bool) -> list[exp.Expr] | None:
    """What EXISTS is over groups that are joined to the block; None where it is not of this form.

    `required` when every row of the block has to fulfil it.
    """
    question = _question(query, block)
    if question is None:
        return None
    alias, number = _joined(question, block, required)
    x, y = (exp.NEQ(this=build.column(f"pgt_{c}{number}", alias), expression=question.other.copy()) for c in "xy")
    return [exp.paren(exp.Or(this=x, expression=y)), *(g.copy() for g in question.gate)]


def _question(query: exp.Query, block: Block) -> Question | None:
    if not isinstance(query, exp.Select) or not queries.is_simple(query, block.ctx) or has_query(_where(query)):
        return None
    source = query.args.get("from_")
    if source is None or query.args.get("joins") or query.args.get("with_") or not _is_plain(source.this):
        return None
    parts = split(build.where_of(query), defined_by(query), block.names)
    if len(parts.mixed) != 1 or not parts.equalities:
        return None
    sides = _unequal(parts.mixed[0], source.this, block)
    keys: list[tuple[exp.Column, Key]] = []
    for inside, outside, null_safe in parts.equalities:
        if sides is None or not isinstance(inside, exp.Column):
            return None
        keys.append((inside, Key(f"pgt_k{len(keys)}", outside.copy(), null_safe)))
    assert sides is not None
    return Question(source.this, tuple(keys), tuple(parts.inner), *sides, tuple(parts.gate))


def _where(query: exp.Select) -> exp.Expr:
    return query.args.get("where") or exp.true()


def _is_plain(item: exp.Expr) -> bool:
    """Whether a FROM item is a table with nothing to it but an alias."""
    if not isinstance(item, exp.Table) or not isinstance(item.this, exp.Identifier):
        return False
    alias = item.args.get("alias")
    renamed = alias is not None and alias.args.get("columns")
    return not renamed and {k for k, v in item.args.items() if v} <= {"this", "db", "alias"}


def _unequal(found: exp.Expr, table: exp.Table, block: Block) -> tuple[exp.Column, exp.Column] | None:
    """The two sides of `value <> other`, where both are integers: the table's and the block's."""
    if not isinstance(found, exp.NEQ):
        return None
    left, right = found.this.unnest(), found.expression.unnest()
    if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
        return None
    inside = table.alias_or_name
    value, other = (left, right) if name_of(left) == inside else (right, left)
    if name_of(value) != inside or name_of(other) not in block.names:
        return None
    around = block.prefix()
    around.set("expressions", [build.named(other, "v")])
    for each in (build.select([build.named(value, "v")], table.copy()), around):
        columns = block.types(each)
        if columns is None or columns[0].type.oid not in _INTEGERS:
            return None
    return value, other


def _joined(question: Question, block: Block, required: bool) -> tuple[str, int]:
    """The alias of the groups that answer a question, and the number of its columns in them."""
    if block.position is None:
        for known in block.groups:
            select = next((i.this for i in flat.items(block.select) if i.alias == known.alias), None)
            extra = _beyond(question, known.first)
            if select is not None and extra is not None:
                value = _renamed(question.value, question.table, known.first.table)
                select.set("expressions", [*select.expressions, *_columns(value, extra, known.questions)])
                known.questions += 1
                return known.alias, known.questions - 1
    alias = block.ctx.fresh("q")
    items: list[exp.Expr] = [build.named(inside, key.name) for inside, key in question.keys]
    items += _columns(question.value, [], 0)
    keys = [inside for inside, _ in question.keys]
    select = build.select(items, question.table.copy(), question.conditions, keys)
    join = block.inner_join if required else block.left_join
    if block.position is None:
        block.groups.append(Groups(alias, question))
    join(select, alias, [key.condition(alias) for _, key in question.keys])
    return alias, 0


def _beyond(question: Question, first: Question) -> list[exp.Expr] | None:
    """The conditions that a question has besides those of the first; None if it asks something else."""

    def renamed(each: exp.Expr) -> exp.Expr:
        return _renamed(each, question.table, first.table)

    if (question.table.db, question.table.name) != (first.table.db, first.table.name):
        return None
    if [(renamed(inside), key) for inside, key in question.keys] != list(first.keys):
        return None
    conditions = [renamed(c) for c in question.conditions]
    if any(c not in conditions for c in first.conditions):
        return None
    return [c for c in conditions if c not in first.conditions]


def _renamed(expression: exp.Expr, table: exp.Table, other: exp.Table) -> exp.Expr:
    """An expression over a table as one over the same table under another alias."""
    copy = expression.copy()
    for column in copy.find_all(exp.Column):
        if column.table == table.alias_or_name:
            column.set("table", build.column("x", other.alias_or_name).args["table"])
    return copy


def _columns(value: exp.Expr, conditions: list[exp.Expr], number: int) -> list[exp.Expr]:
    """`x` and `y` of a question: the only value, or two different numbers, or NULL."""
    filtered = build.every(conditions)

    def over(name: str) -> exp.Expr:
        call: exp.Expr = build.call(name, value)
        return exp.Filter(this=call, expression=exp.Where(this=filtered.copy())) if filtered is not None else call

    only = exp.cast(over("avg"), exp.DataType.Type.BIGINT)
    zero = exp.Literal.number(0)
    same = exp.EQ(this=over("var_pop"), expression=zero.copy())
    several = exp.GT(this=over("var_pop"), expression=zero.copy())
    return [
        build.named(
            build.case([(same, only), (several, exp.cast(exp.Literal.number(n), "bigint"))]), f"pgt_{c}{number}"
        )
        for n, c in enumerate("xy")
    ]
