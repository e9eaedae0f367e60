"""PostgreSQL's print of a query -> a sqlglot tree that prints back as it was.

sqlglot translates between dialects, so it reads many functions as concepts of its own and prints its favourite
spelling. Here nothing is translated: every function stays a plain call by name, except for the few that the
compiler reasons about.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from runnel.sql.aggregates import settle_calls

_UNDERSTOOD = frozenset(
    {
        "COALESCE", "NULLIF", "GREATEST", "LEAST", "COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV", "STDDEV_SAMP",
        "STDDEV_POP", "VAR_SAMP", "VAR_POP", "VARIANCE", "BOOL_AND", "BOOL_OR", "DATE_TRUNC", "LOWER", "UPPER", "ABS",
        "LENGTH",
    }
)  # fmt: skip


class _Parser(PostgresParser):
    FUNCTIONS = {k: v for k, v in PostgresParser.FUNCTIONS.items() if k in _UNDERSTOOD}
    # date_part gives a double, EXTRACT a numeric: they are not the same.
    FUNCTION_PARSERS = {
        k: v for k, v in PostgresParser.FUNCTION_PARSERS.items() if k not in ("DATE_PART", "STRING_AGG")
    }


class Faithful(Postgres):
    """PostgreSQL without translation."""

    Parser = _Parser


def parse_query(text: str) -> exp.Query | None:
    """The tree of a query, or None when sqlglot does not know the syntax."""
    try:
        tree = sqlglot.parse_one(text, read=Faithful)
    except SqlglotError:
        return None
    for node in list(tree.find_all(exp.Not)):
        # `x IS NOT TRUE` would be printed as `NOT x IS TRUE`: the same, but not to a comparison of texts.
        if isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Boolean):
            node.replace(exp.Is(this=node.this.this, expression=exp.Not(this=node.this.expression)))
    settle_calls(tree)
    return tree if isinstance(tree, exp.Query) else None
