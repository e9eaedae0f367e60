"""How many digits after the point the numeric columns of a result can have, where the query tells.

PostgreSQL gives `sum(price)` the type numeric, without bounds, although it never has more digits after the point than
`price`. Decimals elsewhere need a number. It must never be too small, so every form that is not known here means
"not known". This module follows columns through FROM, CTEs, views and set operations; `scale_rules` knows expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from runnel.model.types import Column, PgType
from runnel.sql.scale_rules import Digits, expression_scale, most

Table = tuple[str, str]
"""Schema and name."""
Scales = Mapping[str, Digits]
"""By column, in the order of the columns; None: any number of digits."""
Scope = Mapping[str, Scales | None]
"""What each name in FROM stands for; None: columns that are not known."""


def result_scales(
    tree: exp.Expr, columns: Sequence[Column], tables: Mapping[Table, Scales], views: Mapping[Table, exp.Query]
) -> dict[str, int]:
    """Digits after the point of unbounded numeric result columns, as far as they are known.

    `tables` holds the columns of everything that the query and its views read; `views` the definitions of views.

    >>> from runnel.sql.parse import parse_query
    >>> total = Column("total", PgType(1700, -1, "numeric"))
    >>> tree = parse_query("SELECT coalesce(sum(s.price * 3), 0) AS total FROM public.sales s")
    >>> result_scales(tree, [total], {("public", "sales"): {"price": 2}}, {})
    {'total': 2}
    """
    if not isinstance(tree, exp.Query):
        return {}
    found = _Reader(tables, views).query(tree, {}, {})
    if len(found) != len(columns):
        return {}
    known = zip(columns, found, strict=True)
    return {c.name: n for c, n in known if n is not None and c.type.family == "numeric" and c.type.bounds is None}


def column_scales(columns: Sequence[Column], known: Mapping[str, int] | None = None) -> dict[str, Digits]:
    """Digits of a relation's columns: what their types say, and what else is known of them.

    >>> column_scales([Column("n", PgType(23, -1, "integer")), Column("x", PgType(1700, -1, "numeric"))], {"x": 2})
    {'n': 0, 'x': 2}
    """
    return {c.name: _of_type(c.type) if c.type.bounds else (known or {}).get(c.name) for c in columns}


def _of_type(type_: PgType) -> Digits:
    bounds = type_.bounds
    return None if bounds is None else bounds[1]


@dataclass
class _Reader:
    tables: Mapping[Table, Scales]
    views: Mapping[Table, exp.Query]
    _read: dict[Table, Scales] = field(default_factory=dict)
    """Views that have been looked into."""

    def query(self, tree: exp.Expr, ctes: Scope, outer: Scope) -> list[Digits]:
        """Per output column, in order; `outer` is what a correlated subquery sees around it."""
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, ctes, outer)
        named = {**ctes, **self._ctes(tree, ctes, outer)}
        if isinstance(tree, exp.SetOperation):
            sides = [self.query(tree.left, named, outer), self.query(tree.right, named, outer)]
            return [most(pair) for pair in zip(*sides, strict=False)]
        if isinstance(tree, exp.Values):
            return self._values(tree, named, outer)
        if not isinstance(tree, exp.Select):
            return []
        own: dict[str, Scales | None] = {}
        first = tree.args.get("from_")
        for node in [first, *(tree.args.get("joins") or ())]:
            if node is not None:
                self._add_source(own, node.this, named, outer)
        return [self._scale(item, own, named, outer) for item in tree.selects]

    def _ctes(self, tree: exp.Expr, ctes: Scope, outer: Scope) -> Scope:
        with_ = tree.args.get("with_")
        if with_ is None:
            return {}
        named: dict[str, Scales | None] = {}
        for cte in with_.expressions:
            # A recursive one may grow digits with every round.
            unknown = with_.args.get("recursive")
            named[cte.alias] = None if unknown else self._relation(cte.this, cte, {**ctes, **named}, outer)
        return named

    def _values(self, tree: exp.Values, ctes: Scope, outer: Scope) -> list[Digits]:
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in tree.expressions]
        return [most([self._scale(v, {}, ctes, outer) for v in column]) for column in zip(*rows, strict=False)]

    # -- FROM ----------------------------------------------------------------------------------------------

    def _add_source(self, own: dict[str, Scales | None], node: exp.Expr, ctes: Scope, outer: Scope) -> None:
        """Add what one item of FROM brings; a join in parentheses brings all its tables."""
        inner = node.this if isinstance(node, exp.Subquery) else None
        if isinstance(inner, (exp.Table, exp.Subquery, exp.Lateral, exp.Values)) and not _is_query(inner):
            if node.alias:
                own[node.alias] = None  # its columns are named by rules of their own
            else:
                self._add_source(own, inner, ctes, outer)
        else:
            own[node.alias_or_name] = self._source(
                node, ctes, {**outer, **own} if isinstance(node, exp.Lateral) else outer
            )
        for join in node.args.get("joins") or ():
            self._add_source(own, join.this, ctes, outer)

    def _source(self, node: exp.Expr, ctes: Scope, outer: Scope) -> Scales | None:
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            return self._relation(node.this.this, node, ctes, outer)
        if isinstance(node, exp.Subquery):
            return self._relation(node.this, node, ctes, outer)
        if isinstance(node, exp.Values):
            return self._relation(node, node, ctes, outer)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            return None
        found = ctes[node.name] if not node.db and node.name in ctes else self._table((node.db, node.name))
        return None if found is None else _renamed(found, node)

    def _table(self, table: Table) -> Scales | None:
        columns = self.tables.get(table)
        if columns is None or table not in self.views:
            return columns
        if table not in self._read:
            found = self.query(self.views[table], {}, {})
            self._read[table] = dict(zip(columns, found, strict=False))
        return self._read[table]

    def _relation(self, tree: exp.Expr, alias: exp.Expr, ctes: Scope, outer: Scope) -> Scales | None:
        digits = self.query(tree, ctes, outer)
        selects = tree.selects if isinstance(tree, (exp.Select, exp.SetOperation, exp.Subquery)) else ()
        names = [item.alias_or_name for item in selects] or [f"column{i}" for i, _ in enumerate(digits, 1)]
        if len(names) != len(digits):
            return None
        found: dict[str, Digits] = {}
        for name, number in zip(names, digits, strict=True):
            found[name] = most([found[name], number]) if name in found else number
        return _renamed(found, alias) if len(found) == len(names) else found

    # -- expressions ---------------------------------------------------------------------------------------

    def _scale(self, item: exp.Expr, own: Scope, ctes: Scope, outer: Scope) -> Digits:
        around = {**outer, **own}

        def leaf(node: exp.Expr) -> Digits:
            if isinstance(node, exp.Column):
                return _column(node, own, around)
            return most(self.query(node, ctes, around)[:1])

        return expression_scale(item, leaf)


def _is_query(node: exp.Expr) -> bool:
    """Whether parentheses around it make a subquery, and not a join."""
    return isinstance(node, exp.Subquery) and isinstance(node.this, exp.Query) and not node.args.get("joins")


def _renamed(columns: Scales, alias: exp.Expr) -> Scales:
    """With the column names that an alias gives: `t AS x (a, b)`."""
    given = alias.args.get("alias")
    listed = [c.name for c in given.columns] if isinstance(given, exp.TableAlias) else []
    names = [*listed, *list(columns)[len(listed) :]]
    return dict(zip(names, columns.values(), strict=False))


def _column(node: exp.Column, own: Scope, around: Scope) -> Digits:
    if node.table:
        columns = around.get(node.table)
        return None if columns is None else columns.get(node.name)
    # PostgreSQL leaves the table out where there is only one, and where FULL JOIN .. USING merges two columns.
    if not own or any(columns is None for columns in own.values()):
        return None
    return most([c[node.name] for c in own.values() if c is not None and node.name in c])
