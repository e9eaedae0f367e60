"""Text: both count characters, not bytes. What depends on the locale (letter case, ILIKE) is not said here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from runnel.plan.dialect import Phrase
from runnel.sparksql.casts import text_of
from runnel.sparksql.values import (
    INT_DIGITS,
    Function,
    Rule,
    Untranslatable,
    Value,
    Walk,
    quoted,
    stringy,
)

_LONGEST = 2**31 - 1
_SPECIAL = frozenset("%_\\")
_TRIM = re.compile(r"TRIM\(\s*(BOTH|LEADING|TRAILING)(?:\s+'((?:[^']|'')*)'\s*::\s*text)?\s+FROM")


def text(sql: str) -> Value:
    """An expression that is text."""
    return Value(sql, "text")


def like(walk: Walk, node: exp.Expr) -> Value:
    """LIKE with a constant pattern."""
    tested, pattern = stringy(walk.value(node.this)), walk.value(node.expression)
    if not isinstance(pattern.literal, str):
        raise Untranslatable
    return Value(f"({tested.sql} LIKE {quoted(_pattern(pattern.literal))})", "boolean")


def _pattern(pattern: str) -> str:
    r"""The pattern without escapes that Spark refuses: `\a` is just an a.

    >>> _pattern("a\\b\\%_")
    'ab\\%_'
    """
    found, rest = [], iter(pattern)
    for letter in rest:
        if letter != "\\":
            found.append(letter)
            continue
        following = next(rest, None)
        if following is None:
            # An error in PostgreSQL.
            raise Untranslatable
        found.append(f"\\{following}" if following in _SPECIAL else following)
    return "".join(found)


def concatenation(walk: Walk, node: exp.Expr) -> Value:
    """`||` of text and anything."""
    left, right = walk.value(node.this), walk.value(node.expression)
    if not {"text", "unknown"} & {left.type, right.type}:
        raise Untranslatable
    return text(f"concat({_printed(walk, left)}, {_printed(walk, right)})")


def _printed(walk: Walk, value: Value) -> str:
    return value.sql if value.type == "unknown" else text_of(walk.around, value).sql


def length(walk: Walk, node: exp.Expr) -> Value:
    """length(text)."""
    return _length(walk.value(node.this))


def _length(value: Value) -> Value:
    if value.type == "bytea":
        return Value(f"octet_length({value.sql})", "int")
    if value.type == "bpchar":
        return Value(f"char_length({value.sql})", "int")
    return Value(f"char_length({stringy(value).sql})", "int")


def phrase(walk: Walk, node: exp.Expr) -> Value:
    """SUBSTRING(s FROM a FOR b), TRIM(BOTH 'x' FROM s), POSITION(a IN b)."""
    assert isinstance(node, Phrase)
    words = [str(word).strip(" ()") for word in node.args["words"]]
    parts = [walk.value(part) for part in node.expressions]
    match node.head, words:
        case "SUBSTRING", ["SUBSTRING", "FROM", "FOR", ""] | ["SUBSTRING", "FROM", ""]:
            return substring(walk, parts)
        case "POSITION", ["POSITION", "IN", ""]:
            return position(walk, parts[::-1])
        case "TRIM", [first, ""] if len(parts) == 1:
            # The grammar takes the letters for words.
            found = _TRIM.fullmatch(first)
            if found is not None:
                letters = " " if found[2] is None else found[2].replace("''", "'")
                return _trimmed(found[1], [parts[0], Value("", "text", literal=letters)])
    raise Untranslatable


def substring(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """substring(s, start [, length]): positions before the first character count, too."""
    if len(arguments) not in (2, 3) or any(a.type not in ("smallint", "int") for a in arguments[1:]):
        raise Untranslatable
    source, start = stringy(arguments[0]).sql, arguments[1]
    if len(arguments) == 2:
        return text(f"(CASE WHEN {start.sql} IS NOT NULL THEN substring({source}, greatest({start.sql}, 1)) END)")
    count = arguments[2]
    if isinstance(start.literal, int) and isinstance(count.literal, int):
        if count.literal < 0:
            raise Untranslatable
        from_ = max(start.literal, 1)
        return text(f"substring({source}, {from_}, {max(0, start.literal + count.literal - from_)})")
    begin, end = f"CAST({start.sql} AS BIGINT)", f"(CAST({start.sql} AS BIGINT) + {count.sql})"
    first = f"greatest({begin}, 1L)"
    kept = f"CAST(greatest(least({end} - {first}, {_LONGEST}L), 0L) AS INT)"
    # NULL first: without it greatest and least would pass over NULLs.
    known = f"{source} IS NULL OR {start.sql} IS NULL OR {count.sql} IS NULL"
    cut = f"substring({source}, CAST({first} AS INT), {kept})"
    failure = "raise_error('negative substring length not allowed')"
    return text(f"(CASE WHEN {known} THEN NULL WHEN {count.sql} < 0 THEN {failure} ELSE {cut} END)")


def _ends(name: str) -> Function:
    """left(s, n) and right(s, n) with a constant n; a negative one leaves so many characters out."""

    def ends(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
        if len(arguments) != 2 or not isinstance(arguments[1].literal, int):
            raise Untranslatable
        source, count = stringy(arguments[0]).sql, arguments[1].literal
        if not -_LONGEST < count < _LONGEST:
            raise Untranslatable
        kept = f"greatest(char_length({source}) - {abs(count)}, 0)"
        if name == "left":
            return text(f"substring({source}, 1, {count if count >= 0 else kept})")
        return text(f"substring({source}, {kept} + 1)" if count >= 0 else f"substring({source}, {1 - count})")

    return ends


def position(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """strpos(s, part)."""
    source, part = _strings(arguments, 2)
    return Value(f"instr({source}, {part})", "int")


def _trim(side: str) -> Function:
    return lambda _, arguments: _trimmed(side, arguments)


def _trimmed(side: str, arguments: Sequence[Value]) -> Value:
    if len(arguments) not in (1, 2):
        raise Untranslatable
    letters = arguments[1].literal if len(arguments) == 2 else " "
    if not isinstance(letters, str) or not letters:
        raise Untranslatable
    return text(f"trim({side} {quoted(letters)} FROM {stringy(arguments[0]).sql})")


def replaced(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """replace(s, from, to)."""
    return text(f"replace({', '.join(_strings(arguments, 3))})")


def starts(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """starts_with(s, prefix)."""
    return Value(f"startswith({', '.join(_strings(arguments, 2))})", "boolean")


def joined(walk: Walk, arguments: list[Value]) -> Value:
    """concat(...): without the NULLs. Booleans are printed in another way than as text."""
    if any(a.type == "boolean" for a in arguments):
        raise Untranslatable
    parts = [f"coalesce({_printed(walk, a)}, '')" for a in arguments if a.type != "null"]
    return text(f"concat({', '.join(parts)})" if parts else "''")


def split_part(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """split_part(s, delimiter, n) with constants."""
    if len(arguments) != 3:
        raise Untranslatable
    source, delimiter, place = stringy(arguments[0]), arguments[1].literal, arguments[2].literal
    if not isinstance(delimiter, str) or not delimiter or not isinstance(place, int) or place == 0:
        raise Untranslatable
    return text(f"split_part({source.sql}, {quoted(delimiter)}, {place})")


def _pad(name: str) -> Function:
    """lpad and rpad with constants."""

    def pad(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
        if len(arguments) not in (2, 3):
            raise Untranslatable
        source, size = stringy(arguments[0]), arguments[1].literal
        fill = arguments[2].literal if len(arguments) == 3 else " "
        if not isinstance(size, int) or not isinstance(fill, str) or not fill or size > _LONGEST:
            raise Untranslatable
        return text(f"{name}({source.sql}, {max(size, 0)}, {quoted(fill)})")

    return pad


def _counted(function: str) -> Function:
    def counted(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
        (source,) = _strings(arguments, 1)
        return Value(f"{function}({source})", "int")

    return counted


def _same(function: str) -> Function:
    def same(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
        (source,) = _strings(arguments, 1)
        return text(f"{function}({source})")

    return same


def repeated(walk: Walk, arguments: list[Value]) -> Value:  # noqa: ARG001
    """repeat(s, n)."""
    if len(arguments) != 2 or arguments[1].type not in INT_DIGITS or arguments[1].type == "bigint":
        raise Untranslatable
    return text(f"repeat({stringy(arguments[0]).sql}, {arguments[1].sql})")


def _strings(arguments: Sequence[Value], count: int) -> list[str]:
    if len(arguments) != count:
        raise Untranslatable
    return [stringy(a).sql for a in arguments]


RULES: dict[type[exp.Expr], Rule] = {
    exp.Like: like, exp.DPipe: concatenation, exp.Length: length, Phrase: phrase,
}  # fmt: skip
FUNCTIONS: dict[str, Function] = {
    "substr": substring, "substring": substring, "left": _ends("left"), "right": _ends("right"), "strpos": position,
    "btrim": _trim("BOTH"), "ltrim": _trim("LEADING"), "rtrim": _trim("TRAILING"), "replace": replaced,
    "starts_with": starts, "concat": joined, "split_part": split_part, "lpad": _pad("lpad"), "rpad": _pad("rpad"),
    "char_length": lambda _, arguments: _length(arguments[0]), "octet_length": _counted("octet_length"),
    "character_length": lambda _, arguments: _length(arguments[0]), "reverse": _same("reverse"),
    "md5": _same("md5"), "repeat": repeated,
}  # fmt: skip
