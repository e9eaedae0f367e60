"""DIFFERENTIAL or FULL for one refresh, judged from what this table's refreshes have cost.

A differential refresh costs about a fixed amount plus an amount per captured row; both are read off the
table's own history. It is given up for one refresh when that prediction exceeds what a full one took.
"""

from __future__ import annotations

from collections.abc import Sequence

MIN_CHANGES = 5_000
"""Below this a delta is always worth computing: the prediction would be noise."""


def full_is_cheaper(history: Sequence[tuple[str, int, float]], changes: int) -> str | None:
    """The reason to recompute, or None. History: (action, changes, milliseconds), newest first.

    >>> slow = [("DIFFERENTIAL", 10_000, 5_000.0), ("FULL", 0, 800.0)]
    >>> full_is_cheaper(slow, 20_000)
    'AUTO: a delta of 20000 rows would take about 10000 ms, a full refresh took 800 ms'
    >>> full_is_cheaper(slow, 100) is None
    True
    """
    if changes < MIN_CHANGES:
        return None
    full = [ms for action, _, ms in history if action in ("FULL", "INITIAL", "REINITIALIZE")]
    measured = [(c, ms) for action, c, ms in history if action == "DIFFERENTIAL" and c >= MIN_CHANGES // 10]
    if not full or not measured:
        return None
    # The largest delta seen tells most about a large one.
    rows, spent = max(measured)
    predicted = spent * changes / rows
    if predicted <= full[0]:
        return None
    return f"AUTO: a delta of {changes} rows would take about {predicted:.0f} ms, a full refresh took {full[0]:.0f} ms"
