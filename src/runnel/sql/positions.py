"""Where in the user's own text something is: PostgreSQL prints queries anew, and its print has other positions.

    At line 2, column 8:
    LINE 2: FROM t TABLESAMPLE SYSTEM (10)
                   ^

A place is looked up by tokens, so what stands in strings and comments is never taken for it. Where the text leaves a
doubt, none is shown.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from runnel.sql.registry import Entry

WIDTH = 68
_BEFORE_A_TABLE = ("FROM", "JOIN", "ONLY", ",", "(")
_CLAUSES = (
    TokenType.SELECT, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.HAVING, TokenType.WITH,
)  # fmt: skip
_FUNCTIONS_WITH_FROM = ("EXTRACT", "SUBSTRING", "TRIM", "OVERLAY", "POSITION")


def pointer(query: str, offset: int) -> str:
    """The line of a text with a caret under one character of it, as psql shows it.

    >>> print(pointer("SELECT id\\nFROM nope", 15))
    At line 2, column 6:
    LINE 2: FROM nope
                 ^
    """
    offset = min(max(offset, 0), len(query.rstrip()))
    before = query[:offset]
    number = before.count("\n") + 1
    start = before.rfind("\n") + 1
    end = query.find("\n", start)
    line = query[start : end if end >= 0 else len(query)].replace("\t", " ").rstrip()
    column = offset - start
    cut = max(0, column - WIDTH // 2) if len(line) > WIDTH else 0
    shown = line[cut : cut + WIDTH]
    if cut:
        shown = f"...{shown[3:]}"
    if cut + WIDTH < len(line):
        shown = f"{shown[:-3]}..."
    label = f"LINE {number}: "
    indent = sum(_width(c) for c in (label + shown)[: len(label) + column - cut])
    return f"At line {number}, column {column + 1}:\n{label}{shown}\n{' ' * indent}^"


def statements(text: str) -> int:
    """How many statements a text holds, as far as it can be read.

    >>> statements("SELECT ';' -- ;"), statements("SELECT 1; DROP TABLE t")
    (1, 2)
    """
    try:
        tokens = Postgres().tokenize(text)
    except SqlglotError:
        return 1
    ends = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
    return 1 + sum(1 for i in ends if i + 1 < len(tokens) and tokens[i + 1].token_type is not TokenType.SEMICOLON)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def entry_place(entry: Entry, query: str, views: Iterable[str] = ()) -> str | None:
    """The construct of an entry in a query; None when it may as well stand in one of the views that the query reads."""
    found = _phrases(query, entry.find, selected=entry.selected)
    if any(_phrases(view, entry.find) for view in views):
        return None
    return pointer(query, found[0]) if found and (entry.always or len(found) == 1) else None


def call_place(name: str, query: str, views: Iterable[str] = ()) -> str | None:
    """A call of a function by its name."""
    phrase = f"{name}("
    found = _phrases(query, (phrase,))
    if any(_phrases(view, (phrase,)) for view in views):
        return None
    # age(x) depends on the clock, age(x, y) does not.
    return pointer(query, found[0]) if found and (len(found) == 1 or name != "age") else None


def table_place(name: str, query: str) -> str | None:
    """A table, where it is read."""
    tokens = _tokens(query)
    for i, token in enumerate(tokens):
        if not _is_name(token, name):
            continue
        start = i - 2 if i > 1 and tokens[i - 1].text == "." else i
        after = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if start and after not in (".", "(") and _reads(tokens, start):
            return pointer(query, tokens[start].start)
    return None


def unordered_limit(query: str) -> str | None:
    """The first LIMIT or OFFSET whose query has no ORDER BY."""
    ordered = [False]
    for token in _tokens(query):
        word = token.text.upper()
        if word == "(":
            ordered.append(False)
        elif word == ")" and len(ordered) > 1:
            ordered.pop()
        elif token.token_type == TokenType.ORDER_BY:
            ordered[-1] = True
        elif token.token_type in (TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH) and not ordered[-1]:
            return pointer(query, token.start)
    return None


def _reads(tokens: Sequence[Token], start: int) -> bool:
    """Whether a name stands in a FROM clause."""
    return tokens[start - 1].text.upper() in _BEFORE_A_TABLE and _clause(tokens, start) == TokenType.FROM


def _clause(tokens: Sequence[Token], at: int) -> TokenType | None:
    """The clause that a token belongs to, by the word that begins it."""
    depth = 0
    passed: TokenType | None = None
    for i in range(at - 1, -1, -1):
        kind = tokens[i].token_type
        if kind == TokenType.R_PAREN:
            depth += 1
        elif kind == TokenType.L_PAREN:
            if depth == 0 and i and tokens[i - 1].text.upper() in _FUNCTIONS_WITH_FROM:
                passed = None  # extract(year FROM x)
            depth = max(0, depth - 1)
        elif depth == 0 and kind == TokenType.FROM and passed is None:
            passed = kind
        elif depth == 0 and kind in _CLAUSES:
            return passed or kind
    return passed


def _phrases(query: str, phrases: Iterable[str], *, selected: bool = False) -> list[int]:
    """Offsets at which one of the phrases begins, anywhere or in select lists only."""
    tokens = _tokens(query)
    wanted = [list(_words(p)) for p in phrases]
    found = [i for i in range(len(tokens)) if any(_begins(tokens, i, words) for words in wanted)]
    return [tokens[i].start for i in found if not selected or _clause(tokens, i) == TokenType.SELECT]


def _words(phrase: str) -> Iterator[str]:
    yield from phrase.replace("(", " ( ").split()


def _begins(tokens: Sequence[Token], at: int, words: Sequence[str]) -> bool:
    flat = [w for t in tokens[at : at + len(words)] for w in (t.text.split() if _is_word(t) else [""])]
    if words[-1] == "(":
        return _is_name(tokens[at], words[0]) and len(flat) > 1 and flat[1] == "("
    return [w.upper() for w in flat[: len(words)]] == [w.upper() for w in words]


def _is_word(token: Token) -> bool:
    return token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) or token.text == "("


def _is_name(token: Token, name: str) -> bool:
    if token.token_type == TokenType.IDENTIFIER:
        return token.text == name
    return token.token_type != TokenType.STRING and token.text.lower() == name.lower()


def _tokens(query: str) -> list[Token]:
    try:
        return list(Postgres().tokenize(query))
    except SqlglotError:
        return []
