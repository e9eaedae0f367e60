"""What the demo shows at one moment: the state of the stream tables and their most telling rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from runnel.client import Client, StreamTableStatus


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A question one would ask a stream table. The first `keys` columns say which row is which."""

    table: str
    title: str
    keys: int
    query: LiteralString


EXCERPTS = (
    Excerpt(
        "revenue_by_day",
        "revenue_by_day: the latest day",
        2,
        """
        SELECT to_char(day, 'YYYY-MM-DD') AS day, category, revenue_usd AS revenue, order_count AS orders,
               unique_customers AS customers
        FROM revenue_by_day ORDER BY revenue_by_day.day DESC, category LIMIT 6""",
    ),
    Excerpt(
        "customer_lifetime_value",
        "customer_lifetime_value: the best customers",
        1,
        """
        SELECT email, plan, lifetime_value_usd AS value, total_orders AS orders,
               to_char(last_order_at, 'DD Mon HH24:MI:SS') AS last_order
        FROM customer_lifetime_value ORDER BY lifetime_value_usd DESC NULLS LAST, id LIMIT 6""",
    ),
    Excerpt(
        "inventory_health",
        "inventory_health: what runs out",
        1,
        """
        SELECT sku, stock_count AS stock, units_sold_7d AS sold_7d, stock_status AS status
        FROM inventory_health WHERE stock_status <> 'OK'
        ORDER BY stock_status DESC, units_sold_7d DESC, id LIMIT 6""",
    ),
)

_CHANGES_READ: LiteralString = """
SELECT t.pgt_name AS name, count(*) AS refreshes, coalesce(sum(h.changes_read), 0)::bigint AS changes
FROM pgtrickle.pgt_stream_tables t
JOIN pgtrickle.pgt_refresh_history h USING (pgt_id)
WHERE h.status = 'COMPLETED' AND h.action <> 'INITIAL'
GROUP BY t.pgt_name
"""


@dataclass(frozen=True, slots=True)
class View:
    """One moment of the shop."""

    tables: Sequence[StreamTableStatus]
    refreshes: dict[str, int]
    changes_read: dict[str, int]
    rows: dict[str, list[dict[str, object]]]


def look(client: Client) -> View:
    """Ask the database, as a dashboard would: the stream tables are ordinary tables."""
    read = client.query(_CHANGES_READ)
    return View(
        tables=client.status(),
        refreshes={row["name"]: row["refreshes"] for row in read},
        changes_read={row["name"]: row["changes"] for row in read},
        rows={each.table: client.query(each.query) for each in EXCERPTS},
    )
