"""Names of lake tables as DuckDB writes them, `lake.schema.table`, in a query that PostgreSQL is to read.

PostgreSQL would take the first part for another database. So before it sees the text, such a name is replaced by
that of the stand-in: `lake.table` for the lake's schema main, `"lake.schema".table` for any other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from runnel.model.names import Name, quote
from runnel.sources.ducklake.ref import LakeRef

MAIN = "main"
_IDENTIFIER = 63
"""PostgreSQL cuts longer identifiers off, in bytes."""
_BEFORE_A_TABLE = frozenset(
    {TokenType.FROM, TokenType.JOIN, TokenType.COMMA, TokenType.L_PAREN, TokenType.LATERAL, TokenType.TABLE}
)


def standin_name(lake: str, schema: str, table: str) -> Name:
    """The foreign table that stands for a table of a lake.

    >>> str(standin_name("lake", "main", "t")), str(standin_name("lake", "raw", "t"))
    ('lake.t', 'lake.raw.t')
    """
    return Name(_fitted(lake if schema == MAIN else f"{lake}.{schema}"), _fitted(table))


def _fitted(identifier: str) -> str:
    """An identifier that PostgreSQL can have; two that are longer never become one.

    >>> _fitted("short"), len(_fitted("é" * 40).encode()), _fitted("x" * 70) == _fitted("x" * 71)
    ('short', 63, False)
    """
    if len(identifier.encode()) <= _IDENTIFIER:
        return identifier
    mark = hashlib.sha256(identifier.encode()).hexdigest()[:8]
    return f"{identifier.encode()[: _IDENTIFIER - 9].decode(errors='ignore')}_{mark}"


def cut(identifier: str) -> str:
    """An identifier as PostgreSQL itself cuts it off, whoever writes it in full."""
    return identifier.encode()[:_IDENTIFIER].decode(errors="ignore")


def resolve_names(query: str, tables: Callable[[], Iterable[LakeRef]]) -> str:
    """The query with three-part names of lake tables replaced by those of their stand-ins.

    >>> resolve_names('SELECT e.id FROM lake.main."Ev" e JOIN lake.raw.t ON true',
    ...               lambda: [LakeRef("lake", 1, "main", "Ev"), LakeRef("lake", 2, "raw", "t")])
    'SELECT e.id FROM "lake"."Ev" e JOIN "lake.raw"."t" ON true'
    >>> resolve_names("SELECT lake.main.ev.id FROM lake.main.EV", lambda: [LakeRef("lake", 1, "main", "Ev")])
    'SELECT "lake"."Ev".id FROM "lake"."Ev"'
    """
    if not re.search(r"\.[^.]*\.", query):
        return query
    known = {(t.lake, t.schema, t.table): standin_name(t.lake, t.schema, t.table) for t in tables()}
    if not known:
        return query
    try:
        tokens = Postgres().tokenize(query)
    except TokenError:
        # Whatever is wrong with the text, PostgreSQL will say so better.
        return query
    # DuckDB does not tell upper from lower case, so a plain name that is no table's exact one may be another's.
    folded = {tuple(part.lower() for part in key): name for key, name in known.items()}
    pieces, done = [], 0
    for i in range(len(tokens) - 4):
        parts = tokens[i : i + 5]
        if i and tokens[i - 1].token_type not in _BEFORE_A_TABLE and not _is_column(tokens, i):
            continue
        if any(t.token_type != TokenType.DOT for t in parts[1::2]):
            continue
        named = (_name(parts[0]), _name(parts[2]), _name(parts[4]))
        plain = all(p.token_type != TokenType.IDENTIFIER for p in parts[::2])
        found = known.get(named) or (folded.get(named) if plain else None)
        if found is not None and parts[0].start >= done:
            pieces += [query[done : parts[0].start], f"{quote(found.schema)}.{quote(found.name)}"]
            done = parts[4].end + 1
    return "".join([*pieces, query[done:]])


def _is_column(tokens: list[Token], i: int) -> bool:
    """A column under the full name of its table, `lake.main.t.id`: no other name has four parts."""
    before = tokens[i - 1].token_type
    return (
        before != TokenType.DOT
        and len(tokens) > i + 6
        and all(tokens[i + k].token_type == TokenType.DOT for k in (1, 3, 5))
    )


def _name(token: Token) -> str:
    """An identifier as PostgreSQL reads it: folded to lower case unless quoted."""
    return token.text if token.token_type == TokenType.IDENTIFIER else token.text.lower()
