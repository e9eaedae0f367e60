"""SQL's own JSON aggregates as the functions that PostgreSQL computes them with.

    JSON_ARRAYAGG(t.x ORDER BY t.y RETURNING jsonb)      ->   jsonb_agg_strict(t.x ORDER BY t.y)
    JSON_OBJECTAGG(t.k : t.v WITH UNIQUE KEYS RETURNING json)   ->   json_object_agg_unique(t.k, t.v)

Arrays leave NULLs out unless they say NULL ON NULL, objects keep them unless they say ABSENT ON NULL.
"""

from __future__ import annotations

import re

from sqlglot import exp

from runnel.plan.dialect import Phrase
from runnel.sql.rewrite import tree as tr
from runnel.sql.rewrite.context import Context

_RETURNING = re.compile(r"RETURNING (jsonb?|text)\s*\)$")


def rewrite(tree: exp.Query, _: Context) -> exp.Query:
    """Replace the aggregates; one that returns a type of its own stays, and is refused as an aggregate unknown here."""
    for node in list(tree.find_all(Phrase)):
        name = function_of(node)
        if name is not None:
            _replace(node, name)
    return tree


def function_of(node: Phrase) -> str | None:
    """The function that computes an aggregate; None for all other phrases.

    >>> from runnel.sql.parse import parse_query
    >>> items = parse_query("SELECT JSON_ARRAYAGG(x RETURNING json), JSON_OBJECT('a' : x RETURNING json)").expressions
    >>> [function_of(item) for item in items]
    ['json_agg_strict', None]
    """
    said = " ".join(node.args["words"])
    returning = _RETURNING.search(said)
    if returning is None or "ENCODING" in said:
        return None
    kind = "jsonb" if returning[1] == "jsonb" else "json"
    if node.head == "JSON_ARRAYAGG":
        return f"{kind}_agg{'' if 'NULL ON NULL' in said else '_strict'}"
    if node.head == "JSON_OBJECTAGG":
        unique = "_unique" if "WITH UNIQUE" in said else ""
        return f"{kind}_object_agg{unique}{'_strict' if 'ABSENT ON NULL' in said else ''}"
    return None


def _replace(node: Phrase, name: str) -> None:
    arguments = list[exp.Expr]()
    for part, after in zip(node.expressions, node.args["words"][1:], strict=True):
        if isinstance(part, exp.Order):
            arguments[-1] = exp.Order(this=arguments[-1], expressions=[o.copy() for o in part.expressions])
        else:
            written = "FORMAT JSON" in after.partition("RETURNING")[0]
            arguments.append(exp.cast(part.copy(), "json", dialect="postgres") if written else part.copy())
    call = exp.Anonymous(this=name, expressions=arguments)
    node.replace(call)
    if "RETURNING text" in node.args["words"][-1]:
        whole = tr.whole_call(call)
        if isinstance(whole.parent, exp.Window) and whole.arg_key == "this":
            whole = whole.parent
        whole.replace(exp.cast(whole.copy(), "text", dialect="postgres"))
