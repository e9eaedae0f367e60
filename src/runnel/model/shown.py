"""Values of users' tables as text for people."""

from __future__ import annotations

LONGEST = 200


def as_text(column: str) -> str:
    """SQL for the beginning of a value, NULL if there is none; `column` is a name of the engine's own.

    A cast to text may be a function of some user; format() asks the type's own output function.

    >>> as_text("o1")
    "CASE WHEN num_nulls(o1) = 0 THEN left(format('%s', o1), 200) END"
    """
    return f"CASE WHEN num_nulls({column}) = 0 THEN left(format('%s', {column}), {LONGEST}) END"
