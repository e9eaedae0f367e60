"""Whether sqlglot carries a query faithfully: what it parsed, printed and read again, is the same query to PostgreSQL.

sqlglot knows most of PostgreSQL's grammar, not all of it, and what it misreads it prints as something else without a
word. So its print is given to PostgreSQL, and PostgreSQL's own prints of both texts are compared. A query that does not
come back as it was has no plan, nor has a query over such a view.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlglot import exp

from runnel.errors import UserError
from runnel.plan import expr as ex
from runnel.sql.describe import canonical_print

if TYPE_CHECKING:
    from runnel.catalog.owner import AsOwner

# Spellings of the same function; PostgreSQL prints the one that was written, sqlglot its favourite.
_SYNONYMS = (
    ("now()", "CURRENT_TIMESTAMP"), ("variance(", "var_samp("), ("stddev_samp(", "stddev("), ("bool_and(", "every("),
    ("IS UNKNOWN", "IS NULL"), ("IS NOT UNKNOWN", "IS NOT NULL"),
)  # fmt: skip

# A frame that ends at the current row need not say so.
_FRAME = re.compile(r"\b(ROWS|RANGE|GROUPS) BETWEEN ((?:(?!\bAND\b).)*? PRECEDING) AND CURRENT ROW")


def round_trips(asking: AsOwner, canonical: str, tree: exp.Query) -> bool:
    """Whether sqlglot's print of the tree means the same to PostgreSQL as the canonical text it was parsed from."""
    printed = ex.pg(tree)
    try:
        with asking.conn.transaction():
            again = canonical_print(asking, printed)
            # Reading its own print back, PostgreSQL flattens nested ANDs and ORs, as it did with ours.
            once_more = canonical_print(asking, canonical)
    except UserError:
        return False
    return _normal(again) in (_normal(canonical), _normal(once_more))


def _normal(text: str) -> str:
    for a, b in _SYNONYMS:
        text = text.replace(a, b)
    return _FRAME.sub(r"\1 \2", text)
