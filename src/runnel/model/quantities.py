"""Numbers as people say them."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number of things, exactly.

    >>> counted(1, "row"), counted(4_200_001, "row")
    ('1 row', '4,200,001 rows')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def amount(number: int) -> str:
    """A count that need not be exact above a million.

    >>> amount(999_999), amount(4_249_999), amount(31_000_000_000)
    ('999,999', '4.2 M', '31.0 G')
    """
    if number < 1_000_000:
        return f"{number:,}"
    if number < 1_000_000_000:
        return f"{number / 1_000_000:.1f} M"
    return f"{number / 1_000_000_000:,.1f} G"


def size(number: int) -> str:
    """Bytes.

    >>> size(812), size(3_400_000), size(2_000_000_000_000)
    ('812 B', '3.4 MB', '2.0 TB')
    """
    if number < 1000:
        return f"{number} B"
    value = float(number)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"
