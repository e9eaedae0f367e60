r"""Structs that DuckDB keeps in the catalog as text, turned into the text that it reads back without loss.

DuckDB 1.5 writes a struct, and structs directly inside of it, as SQL literals: a quote is doubled, a backslash itself,
and a date is a cast. Reading, it expects what casts to text give: backslashes before both, and no casts. So it reads
"it's" as "its", a blob as the text of its cast, and breaks off at a date. Lists and maps are written as it reads them,
whatever is inside.

    {'v': 'it''s', 'd': CAST('2020-01-02' AS VARCHAR), 'l': ['a\'b']}    as it is kept
    {'v': 'it\'s', 'd': '2020-01-02', 'l': '[\'a\\\'b\']'}               as it is read
"""

from __future__ import annotations

import re

from runnel.lake.format.model import LakeColumn

_QUOTED = r"'((?:[^']|'')*)'"
_KEY = re.compile(_QUOTED + ": ")
_LEAF = re.compile(rf"CAST\({_QUOTED} AS [A-Z_ ]+(?:\([0-9, ]+\))?\)|{_QUOTED}|([^\s'\",{{}}\[\]()]+)")


def readable_struct(text: str, column: LakeColumn) -> str:
    r"""A struct's literal as DuckDB reads it; what is none is returned as it is.

    >>> v, b = LakeColumn(2, "v", "varchar"), LakeColumn(3, "b", "blob")
    >>> struct = LakeColumn(1, "s", "struct", children=(v, b))
    >>> print(readable_struct(r"{'v': 'it''s', 'b': CAST('\x00' AS VARCHAR)}", struct))
    {'v': 'it\'s', 'b': '\\x00'}
    >>> print(readable_struct(r"{'v': it, 'b': NULL}", struct))
    {'v': 'it', 'b': NULL}
    >>> print(readable_struct(r"{'v': 'it\'s', 'b': NULL}", struct))
    {'v': 'it\'s', 'b': NULL}
    """
    reader = _Reader(text)
    try:
        found = reader.value(column)
    except _NoLiteral:
        return text
    return found if reader.at == len(text) else text


class _NoLiteral(Exception):
    """The text has another form."""


class _Reader:
    """Goes through a text from left to right, by the column's type."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def value(self, column: LakeColumn) -> str:
        if self.text.startswith("NULL", self.at):
            self.at += 4
            return "NULL"
        match column.type:
            case "struct":
                return self._struct(column)
            case "list" | "map":
                return self._enclosed()
            case _:
                return self._leaf()

    def _struct(self, column: LakeColumn) -> str:
        self._pass("{")
        parts = []
        for place, child in enumerate(column.children):
            if place:
                self._pass(", ")
            key = self._matched(_KEY)
            parts.append(f"{_escaped(key[1])}: {self.value(child)}")
        self._pass("}")
        return "{" + ", ".join(parts) + "}"

    def _leaf(self) -> str:
        found = self._matched(_LEAF)
        if found[3] is not None:
            return _escaped(found[3])
        return _escaped(found[1] if found[1] is not None else found[2])

    def _enclosed(self) -> str:
        """A list or a map with all that is in it, as one text: quotes hide brackets, a backslash the next character."""
        begin, depth, quote = self.at, 0, ""
        while self.at < len(self.text):
            each = self.text[self.at]
            if quote:
                self.at += each == "\\"
                quote = "" if each == quote else quote
            elif each in "'\"":
                quote = each
            elif each in "[{(":
                depth += 1
            elif each in ")}]":
                depth -= 1
            self.at += 1
            if depth == 0:
                # As one text: without quotes DuckDB takes a bracket inside of a string for the end.
                return _quoted(self.text[begin : self.at])
        raise _NoLiteral

    def _pass(self, mark: str) -> None:
        if not self.text.startswith(mark, self.at):
            raise _NoLiteral
        self.at += len(mark)

    def _matched(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise _NoLiteral
        self.at = found.end()
        return found


def _escaped(content: str) -> str:
    """The content of a literal, quoted as casts read it."""
    return _quoted(content.replace("''", "'"))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", r"\\").replace("'", r"\'") + "'"
