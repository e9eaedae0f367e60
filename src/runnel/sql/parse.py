"""PostgreSQL's print of a query -> a sqlglot tree that prints back as it was."""

from __future__ import annotations

import re

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from runnel.sql.aggregates import settle_calls
from runnel.sql.grammar import Faithful

# What a text is made of, as far as it matters here: strings and quoted names are left alone.
_PIECES = re.compile(
    r"""
      (?P<string> \b[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" )
    | (?P<named> \bOPERATOR\([^)]*\) )
    | (?P<operator> [-+*/<>=~!@\#%^&|`?]+ )
    | (?P<words> \bLATERAL\ ROWS\ FROM\( | \bIS\ UNKNOWN\b | \bIS\ NOT\ UNKNOWN\b )
    """,
    re.VERBOSE | re.DOTALL,
)
# What sqlglot does not read, and what means the same. A function in FROM is lateral without saying so.
_WORDS = {"LATERAL ROWS FROM(": "ROWS FROM(", "IS UNKNOWN": "IS NULL", "IS NOT UNKNOWN": "IS NOT NULL"}

# Operators that sqlglot reads and prints as they are; all others are called by their full name.
_OPERATORS = frozenset(
    {
        "+", "-", "*", "/", "%", "<", ">", "=", "<=", ">=", "<>", "||", "&", "|", "#", "<<", ">>",
        "~", "~*", "~~", "!~~", "~~*", "!~~*", "->", "->>", "#>", "#>>", "@>", "<@", "&&", "?", "?|", "?&", "=>",
    }
)  # fmt: skip
_PREFIX_OPERATORS = frozenset({"-", "~", "*"})


def parse_query(text: str) -> exp.Query | None:
    """The tree of a query, or None when sqlglot does not know the syntax."""
    try:
        tree = sqlglot.parse_one(spelled_out(text), read=Faithful)
    except SqlglotError:
        return None
    for node in list(tree.find_all(exp.Not)):
        # `x IS NOT TRUE` would be printed as `NOT x IS TRUE`: the same, but not to a comparison of texts.
        if isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Boolean):
            node.replace(exp.Is(this=node.this.this, expression=exp.Not(this=node.this.expression)))
    settle_calls(tree)
    return tree if isinstance(tree, exp.Query) else None


def spelled_out(text: str) -> str:
    """The text in words that sqlglot knows.

    >>> spelled_out("SELECT (s !~ 'a !~ b'::text), (@ x), count(*)")
    "SELECT (s OPERATOR(pg_catalog.!~) 'a !~ b'::text), (OPERATOR(pg_catalog.@) x), count(*)"
    """

    def known(piece: re.Match[str]) -> str:
        operator = piece["operator"]
        if operator is not None:
            # PostgreSQL prints every operator with its operands in parentheses.
            prefix = text[piece.start() - 1 : piece.start()] == "("
            plain = _PREFIX_OPERATORS if prefix else _OPERATORS
            return operator if operator in plain else f"OPERATOR(pg_catalog.{operator})"
        return _WORDS[piece["words"]] if piece["words"] is not None else piece[0]

    return _PIECES.sub(known, text)
