"""The SELECTs that read leaves: pure text, golden-tested without a server.

A leaf's filters and computed columns are PostgreSQL SQL over the alias `l<id>`; here they are put around the
relation, the change buffer or the change log that the leaf stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runnel.model.names import array_literal, quote
from runnel.model.types import TEXTUAL, Column
from runnel.plan.stage import Leaf
from runnel.ports.rows import Clock, Query, Restriction

CLOCK = ":clock"
WEIGHT = '"#w"'
"""The weight beside a source's own columns, under a name that none of them has."""
NOW = "%(now)s::timestamptz"
BEFORE = "%(before)s::timestamptz"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where the changes of a leaf's source are: SQL of the rows with their weight."""

    sql: str
    params: Mapping[str, object]


def buffer_rows(
    values: Mapping[str, str], weight: str, source: str, *, netted: bool = False, textual: frozenset[str] = frozenset()
) -> str:
    """The rows of a buffer with their weight (values: name -> column of the buffer; source: FROM and WHERE).

    `netted` drops rows that came and went before anything is computed on them: nobody may be hurt by a division by
    zero that is no longer there. `textual` columns have no equality and are grouped by their text.
    """
    items, grouped = dict(values), ""
    if netted and values:
        items |= {name: f"(array_agg({values[name]}))[1]" for name in values.keys() & textual}
        groups = [f"{column}::text" if name in textual else column for name, column in values.items()]
        grouped = f" GROUP BY {', '.join(groups)} HAVING sum({weight}) <> 0"
        weight = f"sum({weight})"
    listed = [f"{weight} AS {WEIGHT}", *(f"{value} AS {_escape(quote(name))}" for name, value in items.items())]
    return f"SELECT {', '.join(listed)} {source}{grouped}"


def table_buffer(
    buffer: str,
    columns: Mapping[str, int],
    frontier: str,
    at: str | None = None,
    *,
    netted: bool = False,
    textual: frozenset[str] = frozenset(),
    where: str = "",
) -> Buffer:
    """Changes of a table since a frontier, from its capture buffer (columns: name -> attribute number).

    `at`: the snapshot of the reader, if rows may be in the buffer that it does not show yet. `where` is one more
    condition on the buffer's rows `r`.
    """
    new = "pgt_w <> 0 AND NOT pg_visible_in_snapshot(pgt_xid, %(frontier)s::pg_snapshot)"
    params = {"frontier": frontier}
    if at is not None:
        new += " AND pg_visible_in_snapshot(pgt_xid, %(at)s::pg_snapshot)"
        params["at"] = at
    source = f"FROM {buffer} AS r WHERE {new}{f' AND {where}' if where else ''}"
    values = {name: f"c{number}" for name, number in sorted(columns.items())}
    return Buffer(buffer_rows(values, "pgt_w", source, netted=netted, textual=textual), params)


def log_buffer(
    pgt_id: int,
    columns: Mapping[str, int],
    after: int,
    upto: int,
    *,
    netted: bool = False,
    textual: frozenset[str] = frozenset(),
    where: str = "",
) -> Buffer:
    """Changes of a stream table between two of its versions, from its change log (columns: name -> position).

    `where` is one more condition on the log's rows `r`.
    """
    new = "pgt_version > %(after)s AND pgt_version <= %(upto)s"
    source = f"FROM pgtrickle_changes.log_{pgt_id} AS r WHERE {new}{f' AND {where}' if where else ''}"
    values = {name: f"o{position}" for name, position in columns.items()}
    text = buffer_rows(values, "pgt_w", source, netted=netted, textual=textual)
    return Buffer(text, {"after": after, "upto": upto})


def no_changes(relation: str) -> Buffer:
    """Those of a relation that never changes, for leaves whose rows the clock moves: typed, and empty."""
    return Buffer(f"SELECT 0::int8 AS {WEIGHT}, r.* FROM {_escape(relation)} AS r WHERE false", {})


def textual_columns(columns: Sequence[Column]) -> frozenset[str]:
    """Those whose type has no equality."""
    return frozenset(c.name for c in columns if c.type.oid in TEXTUAL)


def stage_buffer(delta_table: str, columns: Sequence[str]) -> Buffer:
    """Changes that an earlier stage of the same refresh has just produced."""
    items = ", ".join(f"o{i} AS {_escape(quote(name))}" for i, name in enumerate(columns))
    return Buffer(f"SELECT w AS {WEIGHT}, {items} FROM {delta_table}", {})


def leaf_rows(leaf: Leaf, rows: str, where: str = "") -> str:
    """The rows of a leaf as a FROM item under its alias, with the functions that expand them; `where` is over `r`."""
    if not leaf.functions and not where:
        return f"{rows} AS l{leaf.id}"
    functions = "".join(f" {_escape(f.sql)}" for f in leaf.functions)
    return f"(SELECT * FROM {rows} AS r{functions}{f' WHERE {where}' if where else ''}) AS l{leaf.id}"


def _columns(leaf: Leaf, only: Sequence[int] | None) -> list[str]:
    chosen = range(len(leaf.computed)) if only is None else only
    return [f"{leaf.computed[i].sql} AS {leaf.column(i)}" for i in chosen]


def _where(leaf: Leaf, clock: str | None, extra: Sequence[str] = ()) -> str:
    conditions = [f"({_escape(f)})" for f in leaf.filters]
    if clock is not None:
        conditions += [f"({_escape(f).replace(CLOCK, clock)})" for f in leaf.clock_filters]
    conditions += extra
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _escape(text: str) -> str:
    """Percent signs of SQL text, doubled because the statement carries parameters."""
    return text.replace("%", "%%")


def after_query(
    leaf: Leaf,
    relation: str,
    clock: Clock,
    *,
    restriction: Restriction | None = None,
    keys: Sequence[int] | None = None,
    where: str = "",
) -> Query:
    """The leaf as it is now; with `keys`, only those columns, with their multiplicity as weight.

    `where` is a condition on the source's own rows `r`.
    """
    items = [_escape(c) for c in _columns(leaf, keys)]
    params: dict[str, object] = {}
    extra: list[str] = []
    for number, part in enumerate([restriction, *restriction.also] if restriction is not None else []):
        name = f"keys{number or ''}"
        values = f"%({name})s::text[]::{part.array_type}[]"
        condition = f"({_escape(part.sql)}) = ANY({values})"
        if part.between:
            least, greatest = (f"(SELECT {end}(v) FROM unnest({values}) AS v)" for end in ("min", "max"))
            condition = f"({_escape(part.sql)}) BETWEEN {least} AND {greatest}"
        if part.include_null:
            condition = f"({condition} OR ({_escape(part.sql)}) IS NULL)"
        extra.append(condition)
        # As one text: for psycopg every element of a list is a value to look at.
        params[name] = array_literal(list(map(_text_of(part.values), part.values)))
    if leaf.clock_filters:
        params["now"] = clock.now
    source = f"FROM {leaf_rows(leaf, _escape(relation), where)}{_where(leaf, NOW, extra)}"
    if keys is None:
        return Query(f"SELECT {', '.join(items) or 'NULL::bool AS nothing'} {source}", params)
    names = ", ".join(leaf.column(i) for i in keys)
    return Query(f"SELECT {', '.join(items)}, count(*) AS w {source} GROUP BY {names}", params)


def _text_of(values: Sequence[object]) -> Callable[[object], str]:
    """How values of one column are written; they are all of one type."""
    return (lambda v: "t" if v else "f") if values and isinstance(values[0], bool) else str


def delta_query(leaf: Leaf, buffer: Buffer, relation: str, clock: Clock) -> Query:
    """What changed in a leaf: captured rows, netted, plus the rows that the clock moved in or out.

    With P(t) the leaf's clock predicate, t0 the frontier's time and t1 now, the leaf's delta is

        { r in dT : P(r, t0) }  +  { r in T' : P(r, t1) and not P(r, t0) }  -  { r in T' : P(r, t0) and not P(r, t1) }
    """
    names = [leaf.column(i) for i in range(len(leaf.computed))]
    items = [_escape(c) for c in _columns(leaf, None)]
    params = dict(buffer.params)
    head = ", ".join([*items, f"l{leaf.id}.{WEIGHT} AS w"])
    parts = [f"SELECT {head} FROM {leaf_rows(leaf, f'({buffer.sql})')}{_where(leaf, BEFORE)}"]
    if leaf.clock_filters:
        params |= {"before": clock.before, "now": clock.now}
        for weight, since, until in ((1, NOW, BEFORE), (-1, BEFORE, NOW)):
            holds = [f"({_escape(f).replace(CLOCK, since)})" for f in leaf.clock_filters]
            fails = " OR ".join(_escape(f).replace(CLOCK, until) for f in leaf.clock_negations)
            columns = ", ".join([*items, f"{weight} AS w"])
            where = _where(leaf, None, [*holds, f"({fails})"])
            parts.append(f"SELECT {columns} FROM {leaf_rows(leaf, _escape(relation))}{where}")
    union = " UNION ALL ".join(parts)
    grouped = f" GROUP BY {', '.join(names)}" if names else ""
    listed = ", ".join([*names, "sum(w)::int8 AS w"])
    return Query(f"SELECT {listed} FROM ({union}) AS d{grouped} HAVING sum(w) <> 0", params)
