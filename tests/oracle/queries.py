"""Random queries of the shapes that are maintained by deltas, composed with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tests.oracle.expressions import Scope, expression, is_number, predicate, usable
from tests.oracle.joins import FromClause, NextSource, Source, from_clause
from tests.oracle.values import INTEGERS, SQL_TYPES, Col, chance, constant, pick, several


@dataclass(frozen=True)
class Query:
    """The text of a query and its columns."""

    sql: str
    columns: Sequence[Col]


def query(draw: st.DrawFn, sources: Sequence[Source], depth: int, most_joins: int = 3) -> Query:
    """A query over the sources, with subqueries down to `depth`."""
    shapes = ["rows", "group", "rows", "group", "distinct", "total", "union all", "union"]
    if depth > 0:
        shapes += ["with"]
    match pick(draw, shapes):
        case "rows":
            return _rows(draw, _next(draw, sources, depth), most_joins)
        case "distinct":
            return _distinct(draw, _next(draw, sources, depth), most_joins)
        case "group":
            return _group(draw, _next(draw, sources, depth), most_joins, grouped=True)
        case "total":
            return _group(draw, _next(draw, sources, depth), most_joins, grouped=False)
        case "with":
            return _with(draw, sources, depth)
        case word:
            return _union(draw, sources, depth, word.upper())


def _next(draw: st.DrawFn, sources: Sequence[Source], depth: int) -> NextSource:
    def source() -> Source:
        if depth > 0 and chance(draw, 30):
            inner = query(draw, sources, depth - 1, 2)
            return Source(f"({inner.sql})", inner.columns)
        return pick(draw, sources)

    return source


def _where(draw: st.DrawFn, clause: FromClause) -> str:
    conditions = [clause.condition] if clause.condition else []
    if chance(draw, 45):
        conditions.append(predicate(draw, clause.scope))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _named(items: Sequence[Col]) -> tuple[str, list[Col]]:
    """A select list, and its columns under their new names."""
    text = ", ".join(f"{c.sql} AS c{i}" for i, c in enumerate(items))
    return text, [replace(c, sql=f"c{i}") for i, c in enumerate(items)]


def _rows(draw: st.DrawFn, source: NextSource, most: int) -> Query:
    clause = from_clause(draw, source, most)
    text, columns = _named([expression(draw, clause.scope) for _ in range(draw(st.integers(1, 4)))])
    return Query(f"SELECT {text} FROM {clause.sql}{_where(draw, clause)}", columns)


def _distinct(draw: st.DrawFn, source: NextSource, most: int) -> Query:
    clause = from_clause(draw, source, most)
    text, columns = _named(_keys(draw, clause.scope, 1, 3))
    return Query(f"SELECT DISTINCT {text} FROM {clause.sql}{_where(draw, clause)}", columns)


def _keys(draw: st.DrawFn, scope: Scope, least: int, most: int) -> list[Col]:
    """Expressions to group by: their text is compared, so their digits must be certain."""
    found: list[Col] = []
    for _ in range(draw(st.integers(least, most))):
        key = expression(draw, scope)
        if key.rough:
            key = Col(f"({key.sql} IS NULL)", "bool")
        if key.sql not in [f.sql for f in found]:
            found.append(key)
    return found


# -- aggregates --------------------------------------------------------------------------------------------

SPREADS = ("stddev", "variance", "var_pop", "stddev_pop", "stddev_samp", "var_samp")


def _group(draw: st.DrawFn, source: NextSource, most: int, *, grouped: bool) -> Query:
    clause = from_clause(draw, source, most)
    keys = _keys(draw, clause.scope, 1, 2) if grouped else []
    calls = [aggregate(draw, clause.scope) for _ in range(draw(st.integers(0 if keys else 1, 3)))]
    shown = [k for k in keys if not chance(draw, 10)]
    items = shown + [over(draw, c) if chance(draw, 30) else c for c in calls]
    if not items:
        items = [Col("count(*)", "bigint", small=False)]
    text, columns = _named(items)
    sql = f"SELECT {text} FROM {clause.sql}{_where(draw, clause)}"
    if keys:
        sql += f" GROUP BY {', '.join(k.sql for k in keys)}"
    if chance(draw, 25):
        sql += f" HAVING {_having(draw, calls)}"
    return Query(sql, columns)


def aggregate(draw: st.DrawFn, scope: Scope) -> Col:
    """One aggregate call over the columns in scope."""
    argument = expression(draw, scope)
    a = argument.sql
    options = [
        Col("count(*)", "bigint", small=False),
        Col(f"count({a})", "bigint", small=False),
    ]
    if not argument.rough:
        options.append(Col(f"count(DISTINCT {a})", "bigint", small=False))
        options += [
            Col(f"bool_and({predicate(draw, scope, 0)})", "bool"),
            Col(f"bool_or({predicate(draw, scope, 0)})", "bool"),
        ]
    if argument.kind == "bool":
        options.append(Col(f"every({a})", "bool"))
    elif not (argument.rough and argument.kind == "float8"):
        options += [Col(f"min({a})", argument.kind, argument.rough, small=False)]
        options += [Col(f"max({a})", argument.kind, argument.rough, small=False)]
    if is_number(argument):
        options = _sums(draw, argument) + options
    if argument.kind in INTEGERS:
        options.append(Col(f"bit_or({a})", argument.kind, small=False))
    call = pick(draw, options)
    if chance(draw, 20):
        return replace(call, sql=f"{call.sql} FILTER (WHERE {predicate(draw, scope, 0)})")
    return call


def _sums(draw: st.DrawFn, argument: Col) -> list[Col]:
    a, is_float = argument.sql, argument.kind == "float8"
    total = "bigint" if argument.kind == "int" else "float8" if is_float else "numeric"
    fraction = "float8" if is_float else "numeric"
    sums = [
        Col(f"sum({a})", total, argument.rough, small=False),
        Col(f"avg({a})", fraction, True, small=False),
    ]
    if not argument.rough:
        sums.append(Col(f"sum(DISTINCT {a})", total, small=False))
        sums.append(Col(f"{pick(draw, SPREADS)}({a})", fraction, True, small=False))
        if argument.kind == "numeric":
            # How many digits the mean of a mean has follows from all of its inputs: allowed, yet never a key.
            sums.append(Col(f"avg(DISTINCT {a})", "numeric", True, small=False))
    return sums


def over(draw: st.DrawFn, call: Col) -> Col:
    """An expression over aggregates."""
    c = call.sql
    if call.kind in INTEGERS:
        options = [Col(f"{c} + count(*)", "bigint", small=False), Col(f"COALESCE({c}, 0)", call.kind, small=False)]
        return pick(draw, [*options, Col(f"CASE WHEN count(*) > 1 THEN {c} ELSE -1 END", call.kind, small=False)])
    if call.kind == "numeric":
        rounded = Col(f"round({c}, 2)", "numeric", small=False)
        return pick(draw, [rounded, Col(f"COALESCE({c}, 0) / (1 + count(*))", "numeric", rough=True, small=False)])
    if call.kind == "text":
        return Col(f"{c} || count(*)::text", "text")
    if call.kind == "bool":
        return Col(f"COALESCE({c}, false)", "bool")
    return call


def _having(draw: st.DrawFn, calls: Sequence[Col]) -> str:
    known = usable(calls)
    if known and chance(draw, 50):
        call = pick(draw, known)
        return pick(draw, [f"{call.sql} > {constant(draw, call.kind)}", f"{call.sql} IS NOT NULL"])
    return pick(draw, ["count(*) > 1", "count(*) < 3", "count(*) >= 1"])


# -- set operations and CTEs -------------------------------------------------------------------------------


def _union(draw: st.DrawFn, sources: Sequence[Source], depth: int, word: str) -> Query:
    first = _member(draw, sources, depth)
    kinds = [c.kind for c in first.columns]
    parts = [first]
    for _ in range(draw(st.integers(1, 2))):
        parts.append(_like(draw, _member(draw, sources, depth), kinds))
    distinct = word == "UNION"
    texts = [_exact(draw, p) if distinct else p.sql for p in parts]
    mixed = distinct and chance(draw, 20)
    sql = f" {word} ".join(texts) if not mixed else f"{texts[0]} UNION ALL {' UNION '.join(texts[1:])} UNION {texts[0]}"
    rough = [not distinct and any(p.columns[i].rough for p in parts) for i in range(len(kinds))]
    kinds = ["numeric" if k == "money" else k for k in kinds]
    return Query(sql, [Col(f"c{i}", k, r, small=False) for i, (k, r) in enumerate(zip(kinds, rough, strict=True))])


def _member(draw: st.DrawFn, sources: Sequence[Source], depth: int) -> Query:
    shape = pick(draw, ["rows", "rows", "group", "distinct"])
    source = _next(draw, sources, depth - 1)
    match shape:
        case "rows":
            return _rows(draw, source, 2)
        case "group":
            return _group(draw, source, 2, grouped=True)
        case _:
            return _distinct(draw, source, 2)


def _like(draw: st.DrawFn, member: Query, kinds: Sequence[str]) -> Query:
    """The member with columns of the given kinds: its own where they fit, constants elsewhere."""
    items = []
    for kind in kinds:
        fitting = [c for c in member.columns if c.kind == kind]
        if fitting:
            items.append(pick(draw, fitting))
        else:
            items.append(Col(constant(draw, kind) if not chance(draw, 30) else f"NULL::{SQL_TYPES[kind]}", kind))
    text, columns = _named(items)
    return Query(f"SELECT {text} FROM ({member.sql}) u", columns)


def _exact(draw: st.DrawFn, member: Query) -> str:
    """The member without rough columns, which DISTINCT would have to compare."""
    if not any(c.rough for c in member.columns):
        return member.sql
    items = [f"NULL::{SQL_TYPES[c.kind]} AS {c.sql}" if c.rough else f"{c.sql} AS {c.sql}" for c in member.columns]
    return f"SELECT {', '.join(items)} FROM ({member.sql}) u"


def _with(draw: st.DrawFn, sources: Sequence[Source], depth: int) -> Query:
    """CTEs, each of which may read the ones before, used once or several times."""
    # Named by depth: an inner WITH must not hide the names of an outer one.
    names, known, parts = [f"q{depth}", f"r{depth}"], list(sources), []
    for name in several(draw, names, 1, 2):
        inner = query(draw, known, depth - 1, 2)
        parts.append(f"{name} AS ({inner.sql})")
        # The CTE is several times in the list, so that it is likely to be used, perhaps with itself.
        known = [Source(name, inner.columns)] * 3 + known
    shape = pick(draw, ["rows", "group", "distinct"])
    source = _next(draw, known, 0)
    first = Source(known[0].sql, known[0].columns)
    used = iter([first])
    body = {"rows": _rows, "distinct": _distinct}.get(shape)
    take: NextSource = lambda: next(used, None) or source()  # noqa: E731
    main = body(draw, take, 2) if body else _group(draw, take, 2, grouped=True)
    return Query(f"WITH {', '.join(parts)} {main.sql}", main.columns)
