"""How trees are printed for PostgreSQL: as they were read, without translation.

sqlglot prints its favourite spelling of many things. What PostgreSQL writes in words of its own (`JSON_OBJECT('a' : x
RETURNING json)`, `x AT LOCAL`, `OVERLAY(a PLACING b FROM c)`) is a `Phrase`: the words are kept as text, only the
expressions between them are a tree.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.generators.postgres import PostgresGenerator


class Phrase(exp.Expression, exp.Func):
    """Special syntax: `words` are the texts before, between and after its `expressions`."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "words": True, "expressions": False}
    is_var_len_args: ClassVar[bool] = True
    # Words may hold quoted names: letter case counts.
    _hash_raw_args: ClassVar[bool] = True

    @property
    def head(self) -> str:
        """The word that it is known by: JSON_OBJECT, AT LOCAL."""
        return str(self.this)


def phrase(head: str, words: list[str], parts: list[exp.Expr]) -> Phrase:
    """A phrase of n expressions and n + 1 texts around them."""
    return Phrase(this=head, words=words, expressions=parts)


class _Generator(PostgresGenerator):
    def phrase_sql(self, node: Phrase) -> str:
        first, *rest = node.args["words"]
        return str(first) + "".join(self.sql(part) + word for part, word in zip(node.expressions, rest, strict=True))

    TRANSFORMS = {
        **PostgresGenerator.TRANSFORMS,
        Phrase: phrase_sql,
        # Not a function in PostgreSQL.
        exp.CurrentTime: lambda _self, _node: "CURRENT_TIME",
    }


class Printed(Postgres):
    """PostgreSQL, as it is printed for it."""

    Generator = _Generator
