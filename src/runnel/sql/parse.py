"""PostgreSQL's print of a query -> a sqlglot tree that prints back as it was.

sqlglot translates between dialects, so it reads many functions as concepts of its own and prints its favourite
spelling. Here nothing is translated: every function stays a plain call by name, except for the few that the
compiler reasons about.
"""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from runnel.sql.aggregates import settle_calls

_UNDERSTOOD = frozenset(
    {
        "COALESCE", "NULLIF", "GREATEST", "LEAST", "COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV", "STDDEV_SAMP",
        "STDDEV_POP", "VAR_SAMP", "VAR_POP", "VARIANCE", "BOOL_AND", "BOOL_OR", "DATE_TRUNC", "LOWER", "UPPER", "ABS",
        "LENGTH",
    }
)  # fmt: skip


# What sqlglot does not read, and what means the same; if it stood in a string, the round trip would tell. A
# function in FROM is lateral without saying so.
_SPELLINGS = (
    (re.compile(r"\bLATERAL ROWS FROM\("), "ROWS FROM("),
    (re.compile(r"\bIS UNKNOWN\b"), "IS NULL"),
    (re.compile(r"\bIS NOT UNKNOWN\b"), "IS NOT NULL"),
)


class _Parser(PostgresParser):
    FUNCTIONS = {k: v for k, v in PostgresParser.FUNCTIONS.items() if k in _UNDERSTOOD}
    # date_part gives a double, EXTRACT a numeric: they are not the same.
    FUNCTION_PARSERS = {
        k: v for k, v in PostgresParser.FUNCTION_PARSERS.items() if k not in ("DATE_PART", "STRING_AGG")
    }

    def _parse_json_table(self) -> exp.JSONTable:
        """The document is an expression; path and columns hold no columns of the query and stay text."""
        document = self._parse_bitwise()
        self._match(TokenType.COMMA)
        start, depth = self._curr, 0
        while self._curr and (depth or self._curr.token_type != TokenType.R_PAREN):
            depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(self._curr.token_type, 0)
            if self._curr.text.upper() == "PASSING":
                self.raise_error("JSON_TABLE with PASSING")
            self._advance()
        return exp.JSONTable(this=document, path=exp.Var(this=self._find_sql(start, self._prev)))


class Faithful(Postgres):
    """PostgreSQL without translation."""

    Parser = _Parser


def parse_query(text: str) -> exp.Query | None:
    """The tree of a query, or None when sqlglot does not know the syntax."""
    for spelling, known in _SPELLINGS:
        text = spelling.sub(known, text)
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
