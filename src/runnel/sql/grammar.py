"""sqlglot's grammar for what PostgreSQL prints, so that it can be printed back as it was.

sqlglot translates between dialects: it reads many functions as concepts of its own. PostgreSQL's print tells them apart
by itself. A call is in small letters, or in quotes if its name is also a word of the syntax (`"substring"(s, 1, 2)`);
syntax is in capitals (`SUBSTRING(s FROM 1)`). So here a call stays a call by its name, and syntax becomes a `Phrase`,
except for the few things that the compiler reasons about.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlglot import exp
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from runnel.plan.dialect import Phrase, Printed, phrase

_UNDERSTOOD = frozenset(
    {
        "COALESCE", "NULLIF", "GREATEST", "LEAST", "COUNT", "SUM", "AVG", "MIN", "MAX", "STDDEV", "STDDEV_SAMP",
        "STDDEV_POP", "VAR_SAMP", "VAR_POP", "VARIANCE", "BOOL_AND", "BOOL_OR", "DATE_TRUNC", "LOWER", "UPPER", "ABS",
        "LENGTH",
    }
)  # fmt: skip
_UNDERSTOOD_SYNTAX = frozenset({"CAST", "CEIL", "EXTRACT", "FLOOR", "JSON_AGG", "JSON_TABLE", "XMLELEMENT", "XMLTABLE"})
_PHRASES = (
    "JSON", "JSON_ARRAY", "JSON_ARRAYAGG", "JSON_EXISTS", "JSON_OBJECT", "JSON_OBJECTAGG", "JSON_QUERY", "JSON_SCALAR",
    "JSON_SERIALIZE", "JSON_VALUE", "NORMALIZE", "OVERLAY", "POSITION", "SUBSTRING", "TRIM",
)  # fmt: skip

# Words that an expression follows, and words that stand where an expression could.
_BEFORE_VALUE = frozenset({"DEFAULT", "ESCAPE", "FOR", "FROM", "IN", "PASSING", "PLACING", "SIMILAR", "VALUE"})
_NO_VALUE = frozenset({"BOTH", "FROM", "LEADING", "NFC", "NFD", "NFKC", "NFKD", "RETURNING", "TRAILING"})

# Types that sqlglot does not know, or prints as others.
_RAW_TYPE = re.compile(
    r'(?:bit varying(?:\(\d+\))?|interval(?: [a-z]+(?: to [a-z]+)?)?\(\d+\)|"bit"|numeric\(\d+,-\d+\)'
    r"|(?:cstring|oid|reg[a-z]+)(?=\[\]))(?:\[\])*"
)
_NORMAL_FORM = re.compile(r"(?:NF(?:C|D|KC|KD) )?NORMALIZED\b")


class Parser(PostgresParser):
    """Reads PostgreSQL's print."""

    FUNCTIONS = {k: v for k, v in PostgresParser.FUNCTIONS.items() if k in _UNDERSTOOD}
    FUNCTION_PARSERS = {
        **{k: v for k, v in PostgresParser.FUNCTION_PARSERS.items() if k in _UNDERSTOOD_SYNTAX},
        **{name: partial(lambda self, name: self.parse_phrase(name), name=name) for name in _PHRASES},
    }

    def _parse_function_call(
        self,
        functions: dict[str, Callable[..., Any]] | None = None,
        anonymous: bool = False,
        optional_parens: bool = True,
        any_token: bool = False,
    ) -> exp.Expr | None:
        quoted = self._curr.token_type == TokenType.IDENTIFIER
        return super()._parse_function_call(functions, anonymous or quoted, optional_parens, any_token)

    # -- phrases -------------------------------------------------------------------------------------------------

    def parse_phrase(self, head: str) -> Phrase:
        """The inside of special syntax: words in capitals are kept as text, what is between them are expressions."""
        words, parts, wanted = [f"{head}("], list[exp.Expr](), True
        while self._curr and self._curr.token_type != TokenType.R_PAREN:
            word = self._curr.text.upper()
            if self._curr.token_type in (TokenType.COMMA, TokenType.COLON):
                words[-1] += f"{word} " if word == "," else " : "
                wanted = True
                self._advance()
            elif self._curr.token_type == TokenType.ORDER_BY:
                parts.append(self._value(self._parse_order()))
                words.append("")
            elif wanted and not self._is_word(word):
                parts.append(self._value(self._parse_bitwise()))
                words.append("")
                wanted = False
            else:
                words[-1] = f"{words[-1].rstrip()} {self._word()} "
                wanted = word in _BEFORE_VALUE
        words[-1] += ")"
        return phrase(head, words, parts)

    def _is_word(self, word: str) -> bool:
        """Whether a word stands where an expression could: a name in these letters would be quoted."""
        if not self._in_capitals():
            return False
        return word in _NO_VALUE or (word == "NULL" and self._next.text.upper() == "ON")

    def _word(self) -> str:
        """A word; with the type that it announces, or the name that it gives."""
        start, word = self._curr, self._curr.text.upper()
        self._advance()
        if word == "AS":
            self._advance()
        elif word == "RETURNING":
            depth = 0
            while self._curr and (depth or self._goes_on()):
                depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(self._curr.token_type, 0)
                self._advance()
        return self._find_sql(start, self._prev)

    def _goes_on(self) -> bool:
        """Whether a type's name goes on: until the next word, or the end."""
        if self._curr.token_type in (TokenType.COMMA, TokenType.R_PAREN):
            return False
        return not self._in_capitals()

    def _in_capitals(self) -> bool:
        return self._curr.token_type != TokenType.IDENTIFIER and self._find_sql(self._curr, self._curr).isupper()

    def _value(self, found: exp.Expr | None) -> exp.Expr:
        if found is None:
            self.raise_error("Expecting an expression")
        return found or exp.null()

    # -- what is written after or before an expression -----------------------------------------------------------

    def _parse_at_time_zone(self, this: exp.Expr | None) -> exp.Expr | None:
        if this is not None and self._match_text_seq("AT", "LOCAL"):
            return self._parse_at_time_zone(phrase("AT LOCAL", ["", " AT LOCAL"], [this]))
        return super()._parse_at_time_zone(this)

    def _parse_is(self, this: exp.Expr | None) -> exp.Expr | None:
        found = _NORMAL_FORM.match(self.sql, self._curr.start) if self._curr else None
        if found and this is not None:
            self._advance(len(found.group().split()))
            return phrase("NORMALIZED", ["", f" IS {found.group()}"], [this])
        return super()._parse_is(this)

    def _parse_unary(self) -> exp.Expr | None:
        if self._match(TokenType.OPERATOR):
            start = self._prev
            while self._curr and not self._match(TokenType.R_PAREN):
                self._advance()
            operator = self._find_sql(start, self._prev)
            return phrase(operator, [f"{operator} ", ""], [self._value(self._parse_unary())])
        return super()._parse_unary()

    # -- types ---------------------------------------------------------------------------------------------------

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        found = _RAW_TYPE.match(self.sql, self._curr.start) if self._curr else None
        if found is None or self._prev.token_type != TokenType.DCOLON:
            return super()._parse_types(check_func, schema, allow_identifiers, with_collation)
        while self._curr and self._curr.start < found.end():
            self._advance()
        return exp.DataType(this=exp.DType.USERDEFINED, kind=found.group())

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


class Faithful(Printed):
    """PostgreSQL without translation."""

    Parser = Parser
