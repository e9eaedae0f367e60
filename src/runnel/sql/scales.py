"""How many digits after the point the numeric columns of a result can have, where the query tells.

PostgreSQL gives `sum(price)` the type numeric, without bounds, although it never has more digits after the point than
`price`. A lake's decimals need a number. It must never be too small, so every form that is not known here means
"not known".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from runnel.model.types import Column, PgType

Scales = Mapping[str, int | None]
"""By column; None: any number of digits."""

_INTEGERS = (exp.DataType.Type.SMALLINT, exp.DataType.Type.INT, exp.DataType.Type.BIGINT)
_SAME = (exp.Paren, exp.Neg, exp.Alias, exp.Sum, exp.Min, exp.Max, exp.Abs, exp.Window, exp.Filter, exp.Distinct)
_WHOLE = (exp.Count, exp.CountIf, exp.Ceil, exp.Floor, exp.RowNumber, exp.Null)


def result_scales(
    tree: exp.Expr, columns: Sequence[Column], tables: Mapping[tuple[str, str], Sequence[Column]]
) -> dict[str, int]:
    """Digits after the point of unbounded numeric result columns, as far as they are known.

    >>> from sqlglot import parse_one
    >>> price = Column("price", PgType(1700, (10 << 16 | 2) + 4, "numeric(10,2)"))
    >>> total = Column("total", PgType(1700, -1, "numeric"))
    >>> tree = parse_one("SELECT coalesce(sum(s.price * 3), 0) AS total FROM public.sales s", dialect="postgres")
    >>> result_scales(tree, [total], {("public", "sales"): [price]})
    {'total': 2}
    """
    if not isinstance(tree, exp.Query):
        return {}
    found = _Reader(tables).query(tree, {})
    if len(found) != len(columns):
        return {}
    known = zip(columns, found, strict=True)
    return {c.name: n for c, n in known if n is not None and c.type.family == "numeric" and c.type.bounds is None}


class _Reader:
    def __init__(self, tables: Mapping[tuple[str, str], Sequence[Column]]) -> None:
        self.tables = tables

    def query(self, tree: exp.Expr, ctes: Mapping[str, Scales]) -> list[int | None]:
        """Per output column, in order."""
        if isinstance(tree, exp.Subquery):
            return self.query(tree.this, ctes)
        named = dict(ctes)
        with_ = tree.args.get("with_") or tree.args.get("with")
        if with_ is not None:
            for cte in with_.expressions:
                # A recursive one may grow digits with every round.
                named[cte.alias] = {} if with_.args.get("recursive") else self._relation(cte.this, cte, named)
        if isinstance(tree, exp.SetOperation):
            sides = [self.query(tree.left, named), self.query(tree.right, named)]
            return [_most(pair) for pair in zip(*sides, strict=False)]
        if not isinstance(tree, exp.Select):
            return []
        sources: dict[str, Scales] = {}
        joined = [tree.args.get("from_") or tree.args.get("from"), *(tree.args.get("joins") or ())]
        for source in (node.this for node in joined if node is not None):
            for each in source.find_all(exp.Table) if isinstance(source, exp.Paren) else (source,):
                sources[each.alias_or_name] = self._source(each, named)
        return [self.scale(item, sources, named) for item in tree.selects]

    def _source(self, node: exp.Expr, ctes: Mapping[str, Scales]) -> Scales:
        if isinstance(node, exp.Subquery):
            return self._relation(node.this, node, ctes)
        if not isinstance(node, exp.Table):
            return {}
        if not node.db and node.name in ctes:
            return ctes[node.name]
        return {c.name: _of_type(c.type) for c in self.tables.get((node.db, node.name), ())}

    def _relation(self, tree: exp.Expr, alias: exp.Expr, ctes: Mapping[str, Scales]) -> Scales:
        given = alias.args.get("alias")
        listed = [c.name for c in given.columns] if isinstance(given, exp.TableAlias) else []
        names = listed or [item.alias_or_name for item in tree.selects] if isinstance(tree, exp.Query) else []
        return dict(zip(names, self.query(tree, ctes), strict=False))

    def scale(self, node: exp.Expr | None, sources: Mapping[str, Scales], ctes: Mapping[str, Scales]) -> int | None:
        """Of one expression."""

        def of(inner: exp.Expr | None) -> int | None:
            return self.scale(inner, sources, ctes)

        match node:
            case exp.Column():
                # PostgreSQL leaves the table out where there is only one.
                only = next(iter(sources.values())) if not node.table and len(sources) == 1 else {}
                return sources.get(node.table, only).get(node.name)
            case exp.Literal() if not node.is_string:
                text = str(node.this)
                return len(text.partition(".")[2]) if text.replace(".", "", 1).isdigit() else None
            case exp.Add() | exp.Sub():
                return _most([of(node.left), of(node.right)])
            case exp.Mul():
                left, right = of(node.left), of(node.right)
                return None if left is None or right is None else left + right
            case exp.Cast():
                return self._cast(node.to, of(node.this))
            case exp.Anonymous() if str(node.this).lower() == "round":
                digits = node.expressions[1:]
                return 0 if not digits else int(digits[0].name) if digits[0].name.isdigit() else None
            case exp.Case():
                default = node.args.get("default")
                return _most([*(of(i.args["true"]) for i in node.args["ifs"]), 0 if default is None else of(default)])
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                return _most([of(node.this), *(of(e) for e in node.expressions)])
            case exp.Subquery():
                return _most(self.query(node, ctes)[:1] or [None])
        if isinstance(node, _WHOLE):
            return 0
        if isinstance(node, exp.Distinct):
            return of(node.expressions[0]) if len(node.expressions) == 1 else None
        return of(node.this) if isinstance(node, _SAME) else None

    @staticmethod
    def _cast(to: exp.DataType, inner: int | None) -> int | None:
        if to.is_type(*_INTEGERS):
            return 0
        if not to.is_type(exp.DataType.Type.DECIMAL):
            return None
        sizes = [str(p.this) for p in to.expressions]
        if not sizes:
            return inner
        return int(sizes[1]) if len(sizes) > 1 and sizes[1].isdigit() else 0 if len(sizes) == 1 else None


def _most(scales: Sequence[int | None]) -> int | None:
    known = [n for n in scales if n is not None]
    return max(known) if len(known) == len(scales) and known else None


def _of_type(type_: PgType) -> int | None:
    bounds = type_.bounds
    return None if bounds is None else bounds[1]
