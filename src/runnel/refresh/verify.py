"""Compare a stream table with its query, evaluated by PostgreSQL in the same snapshot."""

from __future__ import annotations

from runnel.model import progress
from runnel.model.names import quote
from runnel.model.types import TEXTUAL, PgType
from runnel.refresh.table import TableRefresh

FLOAT4 = 700
FLOAT4_DIGITS, FLOAT8_DIGITS = 3, 12
"""To which floating-point columns are compared: PostgreSQL itself adds such numbers in no fixed order."""


def differences(refresh: TableRefresh, limit: int = 50) -> list[tuple[str, int]]:
    """Rows in which the stream table and its query differ in this very snapshot: (row, weight).

    Positive: the query has it and the table lacks it. Floating-point columns are compared to 12 digits.
    """
    progress.phase("verify")
    table = refresh.table
    stage = table.stages[-1]
    current = ", ".join(quote(c.name) for c in stage.columns)
    names = ", ".join(f"o{i}" for i in range(len(stage.columns)))
    compared = ", ".join(_compared(f"o{i}", c.type) for i, c in enumerate(stage.columns))
    refresh.lend()
    with refresh.shared.as_owner(table).at_work() as owner:
        rows = owner.rows(
            f"""SELECT ROW({compared})::text, sum(w)::int8 FROM (
                  SELECT {names}, 1 AS w FROM ({table.over_lent or table.query}) AS q({names})
                  UNION ALL
                  SELECT {names}, -1 FROM (SELECT {current} FROM {table.name.sql()}) AS s({names})) AS d
                GROUP BY {compared} HAVING sum(w) <> 0 ORDER BY 1 LIMIT {int(limit)}""",
            ["text", "int8"],
        )
    return [(str(r), int(w)) for r, w in rows]


def count(refresh: TableRefresh) -> int:
    """The rows of a stream table."""
    with refresh.shared.as_owner(refresh.table).at_work() as owner:
        return int(owner.value(f"SELECT count(*) FROM {refresh.table.name.sql()}", "int8"))


def _compared(name: str, type_: PgType) -> str:
    """A result column as it is compared."""
    if type_.family != "float":
        return f"({name})::text" if type_.oid in TEXTUAL else name
    # Only the final value is rounded: what the query makes of floating-point numbers on the way is its own matter.
    # Adding zero turns -0 into 0: they are equal, and which of them a group shows is chance.
    digits = "9" * (FLOAT4_DIGITS if type_.oid == FLOAT4 else FLOAT8_DIGITS)
    rounded = f"to_char({name} + '0', '9.{digits[1:]}EEEE')"
    return f"CASE WHEN {name} - {name} = '0' THEN {rounded} ELSE ({name})::text END"
