"""A function in FROM whose arguments come from several tables, or from one that an outer join may pad.

    a LEFT JOIN b ON .. CROSS JOIN LATERAL unnest(b.tags) AS t
    =
    (SELECT .. FROM a LEFT JOIN b ON ..) AS q CROSS JOIN LATERAL unnest(q.tags) AS t

PostgreSQL expands a function while it reads one table, so what stands to the left of it becomes one: a derived table
that is kept as a stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from runnel.plan import expr as ex
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context

_MARK = "enclosed"


def rewrite(tree: exp.Query, ctx: Context) -> exp.Query:
    """The query with such functions over a single derived table."""
    tree = tree.copy()
    for select in reversed(list(tree.find_all(exp.Select))):
        if not _is_recursive(select):
            _select(select, ctx)
    return tree


def _is_recursive(select: exp.Select) -> bool:
    """Whether the block belongs to a recursive query, whose own rules expand functions."""
    clause = select.find_ancestor(exp.With)
    return clause is not None and bool(clause.args.get("recursive"))


def is_enclosed(item: exp.Expr) -> bool:
    """Whether a derived table must not be merged into the block around it."""
    return bool(item.args.get(_MARK))


def _select(select: exp.Select, ctx: Context) -> None:
    position = 0
    while position < len(select.args.get("joins") or []):
        join = select.args["joins"][position]
        if _is_function(join.this) and _needs_one_table(select, position, join):
            enclose_left(select, position, ctx)
            position = 0
        position += 1


def _is_function(item: exp.Expr) -> bool:
    if isinstance(item, exp.Lateral):
        return not isinstance(item.this, exp.Query)
    return isinstance(item, exp.Unnest) or (isinstance(item, exp.Table) and not isinstance(item.this, exp.Identifier))


def _needs_one_table(select: exp.Select, position: int, join: exp.Join) -> bool:
    used = {c.table for c in join.this.find_all(exp.Column)}
    nullable: set[str] = set()
    seen = set(_aliases(select.args["from_"].this))
    # A join in parentheses may hold outer joins of its own.
    nested = {a for item in _items(select, position) if tr.is_join_group(item) for a in _aliases(item)}
    for earlier in select.args["joins"][:position]:
        side = (earlier.side or "").upper()
        own = set(_aliases(earlier.this))
        nullable |= own if side in ("LEFT", "FULL") else set()
        nullable |= seen if side in ("RIGHT", "FULL") else set()
        seen |= own
    return bool(used) and (len(used) > 1 or bool(used & (nullable | nested)))


def _items(select: exp.Select, position: int) -> Iterator[exp.Expr]:
    yield select.args["from_"].this
    yield from (j.this for j in select.args["joins"][:position])


def _aliases(item: exp.Expr) -> Iterator[str]:
    if tr.is_join_group(item) and not item.alias:
        yield from _aliases(item.this)
    else:
        yield item.alias_or_name
    for join in item.args.get("joins") or []:
        yield from _aliases(join.this)


def enclose_left(select: exp.Select, position: int, ctx: Context) -> None:
    """Put everything before the join at `position` into one derived table."""
    inside = {alias for item in _items(select, position) for alias in _aliases(item)}
    joins = select.args["joins"]
    below = exp.Select(from_=select.args["from_"].copy(), joins=[j.copy() for j in joins[:position]])
    select.set("from_", None)
    select.set("joins", [j.copy() for j in joins[position:]])
    alias = ctx.fresh("e")
    names: dict[exp.Expr, str] = {}

    def moved(node: exp.Expr) -> exp.Expr | None:
        if isinstance(node, exp.Column) and node.table in inside:
            bare = node.copy()
            names.setdefault(bare, f"{alias}_{len(names)}")
            return tr.column(names[bare], alias)
        return None

    for key, value in list(select.args.items()):
        if key == "with_" or value is None:
            continue
        if isinstance(value, list):
            select.set(key, [_kept_name(v, ex.rewrite(v, moved)) if isinstance(v, exp.Expr) else v for v in value])
        elif isinstance(value, exp.Expr):
            select.set(key, ex.rewrite(value, moved))
    below.set("expressions", [tr.named(c, n) for c, n in names.items()])
    derived = tr.derived(below, alias)
    derived.set(_MARK, True)
    select.set("from_", exp.From(this=derived))


def _kept_name(before: exp.Expr, after: exp.Expr) -> exp.Expr:
    """A select item that was a bare column keeps its name."""
    if isinstance(before, exp.Column) and isinstance(after, exp.Column) and after.name != before.name:
        return tr.named(after, before.name)
    return after
