"""A value that the lake's type cannot hold: which column, what kind of value, and the way out."""

from __future__ import annotations

import re

from runnel.errors import UserError
from runnel.lake.format.types import TIMESTAMPS, decimal_bounds

_NO_NUMBER = re.compile(r"'-?(NaN|Infinity)'")


def misfit(column: str, type_: str, said: str) -> UserError:
    """The error for a value in a column; `said` is what the conversion said of it.

    >>> print(misfit("v", "decimal(38,20)", "The string 'NaN' is not a valid decimal128 number"))
    a value does not fit into the lake: column v is decimal(38,20) there; decimals have no NaN
    >>> misfit("at", "timestamp", "out of range").sqlstate
    '22008'
    """
    state, hint = "22003", f"Cast the column in the query, for example to text: {column}::text."
    what = said.splitlines()[0]
    special = _NO_NUMBER.search(said)
    if decimal_bounds(type_) is not None and special:
        what = f"decimals have no {special[1]}"
        hint = f"Replace it in the query, NULLIF({column}, '{special[1]}'), or cast the column to float8, which has it."
    elif decimal_bounds(type_) is not None:
        hint = (
            "Numbers have 38 digits in a lake; a numeric without bounds 18 before and 20 after the point. "
            "Cast the column in the query."
        )
    elif type_ == "timestamptz" or type_ in TIMESTAMPS:
        what = "a moment after the year 294246 does not fit"
        hint = f"Use 'infinity' for what never ends, or cast the column to text in the query: {column}::text."
        state = "22008"
    return UserError(
        f"a value does not fit into the lake: column {column} is {type_} there; {what}", hint=hint, sqlstate=state
    )
