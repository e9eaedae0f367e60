"""Floats as PostgreSQL prints them: the shortest digits that mean this very float. Tasks import this module.

Python prints the shortest digits, too, but takes a number halfway between two floats for the even one of them, which
PostgreSQL does not rely on. Short digits lie halfway only beyond 2^53, so only there it takes a closer look.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTION = "pgt_float8_text"
"""The name of the function in Spark SQL."""

_EXACT = 2.0**53
_MOST_DIGITS = 17


def float_text(value: float) -> str:
    """A float8 as PostgreSQL prints it.

    >>> [float_text(x) for x in (0.1, 1e15, 123456.0, -0.0, 1e-5, 1e23, float("-inf"))]
    ['0.1', '1e+15', '123456', '-0', '1e-05', '9.999999999999999e+22', '-Infinity']
    """
    if 1e-4 <= value < 1e15 or -1e15 < value <= -1e-4:
        return repr(value).removesuffix(".0")
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1, value) < 0 else ""
    value = abs(value)
    if math.isinf(value):
        return f"{sign}Infinity"
    digits, exponent = _digits(repr(value))
    if value >= _EXACT and _is_halfway(value, digits, exponent):
        digits, exponent = _longer(value, len(digits) + 1)
    if not digits:
        return f"{sign}0"
    if not -4 <= exponent < 15:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1], digits[exponent + 1 :]
    return f"{sign}{whole:0<{exponent + 1}}{'.' if fraction else ''}{fraction}"


def _digits(text: str) -> tuple[str, int]:
    """The significant digits of a number, and the exponent of the first of them.

    >>> _digits("0.00125"), _digits("1.5e+300"), _digits("120.0")
    (('125', -3), ('15', 300), ('12', 2))
    """
    number, _, power = text.partition("e")
    whole, _, fraction = number.partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    exponent = int(power or 0) + len(whole) - 1 - (len(digits) - len(significant))
    return significant.rstrip("0"), exponent


def _is_halfway(value: float, digits: str, exponent: int) -> bool:
    """Whether digits lie exactly between this float and the next one, in either direction."""
    meant, exact = Fraction(int(digits)) * Fraction(10) ** (exponent - len(digits) + 1), Fraction(value)
    if meant == exact:
        return False
    beyond = math.nextafter(value, math.inf if meant > exact else 0.0)
    return not math.isinf(beyond) and abs(meant - exact) * 2 >= abs(Fraction(beyond) - exact)


def _longer(value: float, length: int) -> tuple[str, int]:
    while True:
        digits, exponent = _digits(f"{value:.{length - 1}e}")
        if length >= _MOST_DIGITS or not _is_halfway(value, digits, exponent):
            return digits, exponent
        length += 1


def float_texts(values: pa.Array) -> pa.Array:
    """The same of many."""
    return pa.array([None if v is None else float_text(v) for v in values.to_pylist()], pa.string())


def register(session: SparkSession) -> None:
    """Let a session know the function."""
    from pyspark.sql import types as st  # noqa: PLC0415  (tasks import this module without it)
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # noqa: PLC0415

    session.udf.register(FUNCTION, arrow_udf(float_texts, st.StringType()))
