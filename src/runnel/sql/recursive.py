"""WITH RECURSIVE -> a stage that PostgreSQL iterates.

    R = base UNION [ALL] step(R, T1, .., Tn)

The base member and every T become hidden stages of their own, computed like any other: after each change their
rows and their delta are both at hand. What is left of the recursive member is a template: a select list, a FROM
clause with holes for R and the T, and a WHERE clause.

    WITH RECURSIVE up AS (SELECT id, boss FROM staff WHERE id = 7
                          UNION SELECT s.id, s.boss FROM up u JOIN staff s ON s.id = u.boss AND s.active)

    stage 0: SELECT id, boss FROM staff WHERE id = 7        base
    stage 1: SELECT id, boss FROM staff WHERE active        T1, with an index on id
    stage 2: SELECT s.id, s.boss FROM [R] JOIN [T1] ON s.id = u.boss
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from runnel.errors import UserError
from runnel.model.types import Column
from runnel.plan import expr as ex
from runnel.plan.stage import RecursiveHead, RecursiveInput, Stage, StageRef
from runnel.sql import refuse, registry
from runnel.sql.ctes import Ctes, mentions, rename_outputs, with_ctes
from runnel.sql.draft import NotDifferentiable
from runnel.sql.recursive_from import RECURSION, Item, Items, all_of, column_of, fold_outer_joins, push_filters, unused
from runnel.sql.rewrite import partitions, subqueries
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.subqueries import flat

StageOf = Callable[[exp.Query, Ctes], StageRef]


def recursive_head(
    name: str, ctes: Ctes, columns: tuple[Column, ...], stage_of: StageOf, context: Context
) -> RecursiveHead:
    """The head of a recursive CTE's stage; its inputs become stages on the way."""
    body = ctes[name].body
    scope = with_ctes(body, ctes)
    if not isinstance(body, exp.Union) or scope.get(name) is not ctes[name]:
        raise NotDifferentiable(registry.RECURSION, "a recursive query that is not a UNION")
    if any(body.args.get(key) for key in ("limit", "offset", "order")):
        raise NotDifferentiable(registry.RECURSION, "LIMIT in a recursive query")
    distinct = bool(body.args.get("distinct"))
    base = _without_subqueries(_bare(body.this), context)
    bases, constants = _bases(base, name, scope, columns, distinct, stage_of)
    select, scope = _member(body.expression, name, scope, distinct, context)
    found = Items(name, columns, scope, context.describe, unused(select))
    found.collect(select)
    reference = found.recursion()
    fold_outer_joins(select, found)
    linear = not any(join.side for join in select.find_all(exp.Join))
    if linear:
        push_filters(select, found)
    if ex.mentions_clock(select):
        raise NotDifferentiable(registry.CLOCK_RECURSIVE)
    inputs = tuple(_input(item, select, scope, stage_of) for item in found.items)
    where = select.args.get("where")
    places = {reference.alias: RECURSION} | {item.alias: number for number, item in enumerate(found.items)}
    outputs = [e.unalias() for e in select.expressions]
    plain = [i for i, e in enumerate(outputs) if _place(e, places) is not None and columns[i].type.family != "other"]
    joined = set(_compared(select, places))
    if distinct:
        joined |= {p for i in plain if (p := _place(outputs[i], places)) is not None}
    return RecursiveHead(
        name=name,
        distinct=distinct,
        bases=bases,
        constants=constants,
        reference=reference.alias,
        inputs=inputs,
        outputs=tuple(ex.pg(e) for e in outputs),
        source=found.template(select),
        condition=ex.pg(where.this) if where is not None else None,
        joined=tuple(sorted(joined)),
        plain=tuple(plain),
        linear=linear,
    )


def wanted_indexes(stages: list[Stage]) -> dict[int, set[str]]:
    """Per stage: the columns that recursive members compare by equality."""
    wanted: dict[int, set[str]] = {}
    for stage in stages:
        if isinstance(stage.head, RecursiveHead):
            for number, name in stage.head.joined:
                own = number == RECURSION
                index = stage.index if own else stage.head.inputs[number].stage
                types = {c.name: c.type for c in (stage.columns if own else stage.head.inputs[number].columns)}
                if name in types and types[name].family != "other":
                    wanted.setdefault(index, set()).add(name)
    return wanted


def _without_subqueries(query: exp.Query, context: Context) -> exp.Query:
    """Subqueries as joins with derived tables; those of a whole recursive query cannot be moved around freely."""
    before = ex.pg(query)
    try:
        rewritten = subqueries.rewrite(query, context)
    except UserError:
        # A type was asked for that depends on the recursive query itself.
        raise NotDifferentiable(registry.RECURSION, "a subquery in a recursive query") from None
    return query if ex.pg(rewritten) == before else partitions.rewrite(rewritten, context)


# -- the base member -------------------------------------------------------------------------------------------


def _bases(
    base: exp.Query, name: str, ctes: Ctes, columns: tuple[Column, ...], distinct: bool, stage_of: StageOf
) -> tuple[tuple[RecursiveInput, ...], tuple[str, ...]]:
    """The base member as stages, and as text where it reads no table."""
    if mentions(base, name):
        raise NotDifferentiable(registry.RECURSION, "the recursive reference in the base member")
    inputs: list[RecursiveInput] = []
    constants: list[str] = []
    for part in _parts(base, distinct):
        query = _bare(part)
        if not query.find(exp.Table):
            if ex.mentions_clock(query):
                raise NotDifferentiable(registry.CLOCK_VALUE)
            constants.append(ex.pg(query))
            continue
        if isinstance(query, (exp.Select, exp.SetOperation)):
            query = rename_outputs(query.copy(), [c.name for c in columns])
        ref = stage_of(query, ctes)
        inputs.append(RecursiveInput(ref.index, "", ref.columns))
    return tuple(inputs), tuple(constants)


def _parts(base: exp.Query, distinct: bool) -> Iterator[exp.Query]:
    """The base member whole, or its members one by one where some of them read no table."""
    query = _bare(base)
    if isinstance(query, exp.Union) and not query.args.get("with_") and not query.args.get("limit"):
        members = [query.this, query.expression]
        if (distinct or not query.args.get("distinct")) and any(not _reads_tables(m) for m in members):
            for member in members:
                yield from _parts(member, distinct)
            return
    yield query


def _reads_tables(query: exp.Query) -> bool:
    """Whether every SELECT at the top of a union reads something."""
    query = _bare(query)
    if isinstance(query, exp.Union):
        return _reads_tables(query.this) and _reads_tables(query.expression)
    return query.find(exp.Table) is not None


def _bare(query: exp.Query) -> exp.Query:
    while isinstance(query, exp.Subquery) and not query.args.get("joins"):
        query = query.this
    return query


# -- the recursive member --------------------------------------------------------------------------------------


def _member(query: exp.Query, name: str, ctes: Ctes, distinct: bool, context: Context) -> tuple[exp.Select, Ctes]:
    """The recursive member, checked, and the CTEs it sees."""
    query = _without_subqueries(_bare(query), context)
    if not isinstance(query, exp.Select):
        raise NotDifferentiable(registry.RECURSION, f"a recursive member that is a {type(query).__name__.upper()}")
    scope = with_ctes(query, ctes)
    clause = query.args.get("with_")
    if scope.get(name) is not ctes[name] or any(mentions(c.this, name) for c in (clause.expressions if clause else ())):
        raise NotDifferentiable(registry.RECURSION, "the recursive reference inside another CTE")
    select = query.copy()
    select.set("with_", None)
    if distinct and select.args.get("distinct") and not select.args["distinct"].args.get("on"):
        # The UNION above removes duplicates anyway.
        select.set("distinct", None)
    if select.args.get("limit") or select.args.get("offset"):
        raise NotDifferentiable(registry.RECURSION, "LIMIT in a recursive member")
    select.set("order", None)
    flat.flatten(select)
    refuse.check_block(select)
    if refuse.is_stateful(select):
        raise NotDifferentiable(registry.RECURSION, "DISTINCT, an aggregate or a window function in a recursive member")
    if any(isinstance(c.this, exp.Star) for c in select.find_all(exp.Column)):
        raise NotDifferentiable(registry.WHOLE_ROW, "a whole row used as a value in a recursive member")
    return select, scope


def _input(item: Item, select: exp.Select, ctes: Ctes, stage_of: StageOf) -> RecursiveInput:
    """A hidden stage with the columns of an input that the member mentions."""
    merged = {i.name for join in select.find_all(exp.Join) for i in join.args.get("using") or []}
    used = {c.name for c in select.find_all(exp.Column) if c.table in (item.alias, "")} | merged
    names = [c.name for c in item.columns if c.name in used] or [c.name for c in item.columns][:1]
    if not names:
        raise NotDifferentiable(registry.UNRULED, "a table without columns in a recursive member")
    query = exp.Select(
        expressions=[exp.alias_(column_of(n, item.alias), n, quoted=True) for n in names],
        from_=exp.From(this=item.node),
    )
    condition = all_of(item.filters)
    if condition is not None:
        query.set("where", exp.Where(this=condition))
    if isinstance(item.node, exp.Table):
        # Under its own name, the same table twice is one stage.
        _rename(query, item)
    ref = stage_of(query, ctes)
    return RecursiveInput(ref.index, item.alias, ref.columns)


def _rename(query: exp.Select, item: Item) -> None:
    for column in query.find_all(exp.Column):
        column.set("table", exp.to_identifier(item.node.name, quoted=True))
    alias = item.node.args.get("alias")
    columns = alias.args.get("columns") if alias is not None else None
    item.node.set("alias", exp.TableAlias(this=exp.to_identifier(item.node.name, quoted=True), columns=columns))


def _place(expression: exp.Expr, places: dict[str, int]) -> tuple[int, str] | None:
    """The input and column that an expression is, if it is a plain column."""
    bare = expression.unnest()
    if isinstance(bare, exp.Column) and bare.table in places:
        return places[bare.table], bare.name
    return None


def _compared(select: exp.Select, places: dict[str, int]) -> Iterator[tuple[int, str]]:
    """Columns that take part in an equality between relations."""
    for equality in select.find_all(exp.EQ):
        sides = [_place(equality.left, places), _place(equality.right, places)]
        yield from (side for side in sides if side is not None)
    for join in select.find_all(exp.Join):
        for identifier in join.args.get("using") or []:
            yield from ((number, identifier.name) for number in places.values())
