"""Window functions whose result depends on the order of ties get an order without ties.

    row_number() OVER (ORDER BY t.a)   ->   row_number() OVER (ORDER BY t.a, t.b)     where the block mentions t.b

Only where ties are not part of the meaning. `rank` and frames that end at the last peer (RANGE, the default, and
GROUPS) treat ties alike: breaking them would change the result.
"""

from __future__ import annotations

from sqlglot import exp

from runnel.sql.draft import NotDifferentiable
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context
from runnel.sql.rewrite.qualify import ORDER_SENSITIVE
from runnel.sql.rewrite.totality import is_total, key

_BY_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
_BY_ROWS = frozenset({"row_number", "ntile", "lag", "lead"})
_BY_PLACE = frozenset({"first_value", "last_value", "nth_value"})


def refine(select: exp.Select, ctx: Context) -> None:
    """Expand the WINDOW clause into the calls, and break ties where that is allowed."""
    definitions = {w.this.name: w for w in select.args.get("windows") or []}
    calls = [n for n in tr.block_nodes(select, "expressions", "order", "distinct") if isinstance(n, exp.Window)]
    for call in calls:
        _expand(call, definitions)
    select.set("windows", None)
    for call in calls:
        _break_ties(call, select, ctx)


def _expand(call: exp.Window, definitions: dict[str, exp.Window]) -> None:
    """`OVER (w ROWS ..)` -> the partition and the order of w written out."""
    named = call.args.get("alias")
    if named is None:
        return
    base = definitions.get(named.name)
    if base is None:
        raise NotDifferentiable(f"the window {named.name}")
    base = base.copy()
    _expand(base, definitions)
    for part in ("partition_by", "order", "spec"):
        value = base.args.get(part)
        if value and not call.args.get(part):
            call.set(part, value)
    call.set("alias", None)


def _break_ties(call: exp.Window, select: exp.Select, ctx: Context) -> None:
    inner = call.this
    while isinstance(inner, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.Dot)):
        inner = inner.expression if isinstance(inner, exp.Dot) else inner.this
    name = tr.function_name(inner) or ""
    order = call.args.get("order")
    ordered = list(order.expressions) if order is not None else []
    verdict = _verdict(name, call.args.get("spec"), bool(ordered), ctx)
    if verdict == "keep":
        return
    known = [o.this for o in ordered] + list(call.args.get("partition_by") or [])
    added = _tiebreakers(select, known, ctx)
    if not added:
        return
    shown = tr.text(call.this).replace('"', "")
    if verdict == "leave":
        ctx.note(f"the result of {shown} OVER (..) depends on the order of ties, which its frame leaves undecided")
        return
    names = ", ".join(tr.text(o.this).replace('"', "") for o in added)
    ctx.note(f"ORDER BY does not decide ties for {shown} OVER (..): they are broken by ({names})")
    if verdict == "peers":
        keys = [*(call.args.get("partition_by") or []), *(o.this for o in ordered)]
        call.set("partition_by", [k.copy() for k in keys])
        ordered = []
    call.set("order", exp.Order(expressions=[*ordered, *added]))
    if verdict in ("whole", "peers"):
        spec = exp.WindowSpec(
            kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING"
        )
        call.set("spec", spec)


def _verdict(name: str, spec: exp.Expr | None, ordered: bool, ctx: Context) -> str:
    """What to do about ties.

    keep: they do not matter.   refine: break them.   whole: break them, over a frame that is the whole partition.
    peers: the frame ends at the last peer, so `last_value(x) OVER (PARTITION BY p ORDER BY k)` takes the last row of
    the partition (p, k).   leave: ties cannot be broken without changing the frame.
    """
    if name in _BY_PEERS:
        return "keep"
    if name in _BY_ROWS:
        return "refine"
    sensitive = name in _BY_PLACE or name in ORDER_SENSITIVE or not ctx.is_aggregate(name)
    kind = str(spec.args.get("kind") or "RANGE").upper() if spec is not None else "RANGE"
    start = spec.args.get("start") if spec is not None else "UNBOUNDED"
    end = (spec.args.get("end") or "CURRENT ROW") if spec is not None else "CURRENT ROW"
    exclude = spec.args.get("exclude") if spec is not None else None
    excludes = exclude is not None and str(exclude).upper() not in ("NO OTHERS", "")
    from_first = start == "UNBOUNDED" and (spec is None or spec.args.get("start_side") == "PRECEDING")
    whole = from_first and (end == "UNBOUNDED" or (not ordered and kind == "RANGE" and end == "CURRENT ROW"))
    if whole and not excludes:
        return "whole" if sensitive else "keep"
    if kind == "ROWS":
        by_peers = excludes and str(exclude).upper() in ("GROUP", "TIES")
        return "leave" if by_peers else "refine"
    if name == "first_value" and from_first and end == "CURRENT ROW" and not excludes:
        return "refine"
    if name == "last_value" and ordered and end == "CURRENT ROW" and not excludes:
        return "peers"
    return "leave" if sensitive else "keep"


def _tiebreakers(select: exp.Select, known: list[exp.Expr], ctx: Context) -> list[exp.Ordered]:
    """What tells the rows of a block apart, as far as its outputs look at them."""
    if is_total(select, known, ctx):
        return []
    mentioned = _of_groups(select, ctx) if tr.is_grouped(select, ctx) else _of_rows(select)
    seen = {key(k) for k in known}
    wanted = []
    for expression in mentioned:
        if key(expression) not in seen:
            seen.add(key(expression))
            wanted.append(expression)
    return tr.sortable(wanted, select, ctx) if wanted else []


def _of_rows(select: exp.Select) -> list[exp.Expr]:
    aliases = {i.alias for i in tr.leaf_items(select)}
    merged = tr.merged_columns(select)
    found: list[exp.Expr] = []
    for clause in ("expressions", "order", "distinct"):
        value = select.args.get(clause)
        for part in value if isinstance(value, list) else [value]:
            for node in part.find_all(exp.Column) if isinstance(part, exp.Expr) else ():
                if node.table in aliases or (not node.table and node.name in merged):
                    found.append(node)
    return found


def _of_groups(select: exp.Select, ctx: Context) -> list[exp.Expr]:
    group = select.args.get("group")
    keys = list(group.expressions) if group is not None else []
    sets = [k for k in keys if isinstance(k, (exp.Rollup, exp.Cube, exp.GroupingSets))]
    if not sets:
        return [k for k in keys if not isinstance(k, exp.Tuple)]
    # The same keys can appear in several grouping sets: only what the block mentions tells them apart.
    plain = [k for k in keys if not isinstance(k, (exp.Tuple, exp.Rollup, exp.Cube, exp.GroupingSets))]
    columns = [c for s in sets for c in tr.grouping_keys(s)]
    nodes = list(tr.block_nodes(select, "expressions", "order", "distinct"))
    calls = [tr.whole_call(n) for n in tr.aggregates(nodes, ctx)]
    grouping = [n for n in nodes if tr.function_name(n) == "grouping"]
    return [*plain, *columns, *calls, *grouping]
