"""Give the tables of a query other names, in PostgreSQL's own print of it.

The catalog keeps the print, in which every relation stands with its schema. When a source is renamed or moved its
name is replaced there, token by token; all else stays as it was. The old name becomes the alias, because columns may
be written with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot.dialects.postgres import Postgres
from sqlglot.tokenizer_core import Token, TokenType

from runnel.model.names import Name, quote

_BEFORE_A_TABLE = frozenset({TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN})
_PARTS = 3
"""Tokens of a qualified name."""


def rename_tables(query: str, names: Mapping[Name, Name]) -> str:
    """A canonical query with other names for some of its relations.

    >>> old, new = Name("public", "t"), Name("other", "T2")
    >>> rename_tables("SELECT t.a, u.t FROM (public.t JOIN public.t u ON ((t.a = u.a)))", {old: new})
    'SELECT t.a, u.t FROM ("other"."T2" "t" JOIN "other"."T2" u ON ((t.a = u.a)))'
    >>> rename_tables("SELECT public.t(x.a) AS r, 'public.t' FROM ONLY public.t x", {old: new})
    'SELECT public.t(x.a) AS r, \\'public.t\\' FROM ONLY "other"."T2" x'
    """
    tokens = Postgres().tokenize(query)
    pieces, done = [], 0
    for i in range(len(tokens) - _PARTS + 1):
        schema, dot, table = tokens[i : i + _PARTS]
        if dot.token_type != TokenType.DOT or not _stands_for_a_table(tokens, i):
            continue
        old = Name(schema.text, table.text)
        if old in names:
            new = names[old]
            alias = "" if _has_alias(query, tokens, i) else f" {quote(old.name)}"
            pieces += [query[done : schema.start], f"{quote(new.schema)}.{quote(new.name)}{alias}"]
            done = table.end + 1
    return "".join([*pieces, query[done:]])


def _stands_for_a_table(tokens: list[Token], i: int) -> bool:
    before = tokens[i - 1] if i else None
    if before is None or not (before.token_type in _BEFORE_A_TABLE or before.text.upper() == "ONLY"):
        return False
    after = tokens[i + _PARTS] if i + _PARTS < len(tokens) else None
    return after is None or after.token_type not in (TokenType.L_PAREN, TokenType.DOT)


def _has_alias(query: str, tokens: list[Token], i: int) -> bool:
    """Whether a name follows; a keyword is printed in capitals, and a name like that is quoted."""
    if i + _PARTS >= len(tokens):
        return False
    after = tokens[i + _PARTS]
    written = query[after.start : after.end + 1]
    return written.startswith('"') or (written[0].isalpha() or written[0] == "_") and written != written.upper()
