"""What happens to the tables between two refreshes.

| mix | changes |
|---|---|
| `sales` | a share of the rows of every fact table is inserted, as many are deleted |
| `every_table` | `sales`, and updates of the same share of the fact tables and of the large dimensions |
| `small` | one or two rows of each small dimension: a store moves, a promotion ends, a reason is renamed |

Small dimensions are a mix of their own because a store that moves concerns all that it sold.
"""

from __future__ import annotations

from collections.abc import Mapping

from runnel.bench.workload import Connection

_ORDERS: Mapping[str, tuple[str, str, str]] = {
    "store_sales": ("ss_ticket_number", "ss_item_sk", "ss_sold_date_sk"),
    "store_returns": ("sr_ticket_number", "sr_item_sk", "sr_returned_date_sk"),
    "catalog_sales": ("cs_order_number", "cs_item_sk", "cs_sold_date_sk"),
    "catalog_returns": ("cr_order_number", "cr_item_sk", "cr_returned_date_sk"),
    "web_sales": ("ws_order_number", "ws_item_sk", "ws_sold_date_sk"),
    "web_returns": ("wr_order_number", "wr_item_sk", "wr_returned_date_sk"),
}
"""Fact tables: the column of the order, of the item, of the day."""

_INSERT = """
CREATE TEMPORARY TABLE fresh ON COMMIT DROP AS
SELECT * FROM {table} ORDER BY hashint8extended({order} * 100003 + {item}, %(seed)s) LIMIT %(rows)s;
UPDATE fresh SET {order} = {order} + (SELECT max({order}) FROM {table}),
    {day} = {day} + dice({order}, %(seed)s + 1, 15) - 7;
INSERT INTO {table} SELECT * FROM fresh ON CONFLICT DO NOTHING;
DROP TABLE fresh;
"""
"""New rows look like existing ones, of another order, up to a week earlier or later."""

_DELETE = """
DELETE FROM {table} WHERE ({item}, {order}) IN (
    SELECT {item}, {order} FROM {table}
    ORDER BY hashint8extended({order} * 100003 + {item}, %(seed)s + 2) LIMIT %(rows)s);
"""

_INVENTORY = """
DELETE FROM inventory WHERE (inv_date_sk, inv_item_sk, inv_warehouse_sk) IN (
    SELECT inv_date_sk, inv_item_sk, inv_warehouse_sk FROM inventory
    ORDER BY hashint8extended(inv_date_sk * 100003 + inv_item_sk, %(seed)s + inv_warehouse_sk) LIMIT %(rows)s);
INSERT INTO inventory
SELECT inv_date_sk + 1, inv_item_sk, inv_warehouse_sk, inv_quantity_on_hand + 3 FROM inventory
ORDER BY hashint8extended(inv_date_sk * 100003 + inv_item_sk, %(seed)s + 1 + inv_warehouse_sk) LIMIT %(rows)s
ON CONFLICT DO NOTHING;
UPDATE inventory SET inv_quantity_on_hand = dice(inv_item_sk, %(seed)s, 1000)
WHERE (inv_date_sk, inv_item_sk, inv_warehouse_sk) IN (
    SELECT inv_date_sk, inv_item_sk, inv_warehouse_sk FROM inventory
    ORDER BY hashint8extended(inv_date_sk * 100003 + inv_item_sk, %(seed)s + 2 + inv_warehouse_sk) LIMIT %(rows)s);
"""

_UPDATES: Mapping[str, tuple[str, str]] = {
    "store_sales": (
        "ss_ticket_number * 100003 + ss_item_sk",
        "ss_quantity = 1 + dice(ss_ticket_number, %(seed)s, 100), ss_sales_price = round(ss_sales_price * 1.05, 2), "
        "ss_ext_sales_price = ss_ext_sales_price + 7, ss_net_profit = ss_net_profit - 3",
    ),
    "store_returns": (
        "sr_ticket_number * 100003 + sr_item_sk",
        "sr_return_quantity = sr_return_quantity + 1, sr_return_amt = sr_return_amt + 5, sr_net_loss = sr_net_loss + 1",
    ),
    "catalog_sales": (
        "cs_order_number * 100003 + cs_item_sk",
        "cs_quantity = 1 + dice(cs_order_number, %(seed)s, 100), cs_ext_sales_price = cs_ext_sales_price + 7, "
        "cs_list_price = cs_list_price + 1, cs_net_profit = cs_net_profit - 3",
    ),
    "catalog_returns": (
        "cr_order_number * 100003 + cr_item_sk",
        "cr_return_amount = cr_return_amount + 5, cr_net_loss = cr_net_loss + 1",
    ),
    "web_sales": (
        "ws_order_number * 100003 + ws_item_sk",
        "ws_quantity = 1 + dice(ws_order_number, %(seed)s, 100), ws_ext_sales_price = ws_ext_sales_price + 7, "
        "ws_net_paid = ws_net_paid + 2, ws_net_profit = ws_net_profit - 3",
    ),
    "web_returns": (
        "wr_order_number * 100003 + wr_item_sk",
        "wr_return_amt = wr_return_amt + 5, wr_net_loss = wr_net_loss + 1",
    ),
    "customer": (
        "c_customer_sk",
        "c_current_addr_sk = 1 + dice(c_customer_sk, %(seed)s, (SELECT max(ca_address_sk) FROM customer_address)), "
        "c_birth_month = 1 + dice(c_customer_sk, %(seed)s + 1, 12), c_preferred_cust_flag = 'Y'",
    ),
    "customer_address": (
        "ca_address_sk",
        "ca_state = (ARRAY['TN', 'GA', 'TX', 'CA', 'IL'])[1 + dice(ca_address_sk, %(seed)s, 5)], "
        "ca_gmt_offset = -5 - dice(ca_address_sk, %(seed)s + 1, 3)",
    ),
    "item": (
        "i_item_sk",
        "i_current_price = i_current_price + 1, i_manager_id = 1 + dice(i_item_sk, %(seed)s, 100), "
        "i_category = (ARRAY['Sports', 'Books', 'Home', 'Music', 'Women'])[1 + dice(i_item_sk, %(seed)s + 1, 5)]",
    ),
    "household_demographics": ("hd_demo_sk", "hd_dep_count = dice(hd_demo_sk, %(seed)s, 10)"),
    "customer_demographics": ("cd_demo_sk", "cd_education_status = 'College', cd_dep_count = cd_dep_count + 1"),
}
"""Per table: the key that chance is drawn from, and what is set."""

_SMALL = """
UPDATE store SET
    s_state = (ARRAY['TN', 'GA', 'TX'])[1 + dice(s_store_sk, %(seed)s, 3)],
    s_number_employees = 200 + %(seed)s %% 95
WHERE s_store_sk = (SELECT min(s_store_sk) FROM store);
UPDATE warehouse SET w_warehouse_name = 'Moved ' || %(seed)s
WHERE w_warehouse_sk = (SELECT max(w_warehouse_sk) FROM warehouse);
UPDATE promotion SET p_channel_email = 'N', p_channel_event = 'N'
WHERE p_promo_sk = (SELECT max(p_promo_sk) FROM promotion);
UPDATE call_center SET cc_county = 'Williamson County'
WHERE cc_call_center_sk = (SELECT min(cc_call_center_sk) FROM call_center);
UPDATE web_site SET web_company_name = 'pri' WHERE web_site_sk = (SELECT min(web_site_sk) FROM web_site);
UPDATE reason SET r_reason_desc = 'reason 28' WHERE r_reason_sk = (SELECT max(r_reason_sk) FROM reason);
UPDATE ship_mode SET sm_carrier = 'DHL' WHERE sm_ship_mode_sk = 1 + %(seed)s %% 20;
UPDATE date_dim SET d_holiday = 'Y' WHERE d_date = DATE '2000-02-01' + (%(seed)s %% 28)::integer;
"""


def sales(conn: Connection, share: float, seed: int) -> None:
    """Rows of the fact tables come and go."""
    for table, (order, item, day) in _ORDERS.items():
        script = (_INSERT + _DELETE).format(table=table, order=order, item=item, day=day)
        _run(conn, script, {"seed": seed, "rows": _rows(conn, table, share)})
    _run(conn, _INVENTORY, {"seed": seed, "rows": _rows(conn, "inventory", share)})


def every_table(conn: Connection, share: float, seed: int) -> None:
    """`sales`, and updates of the fact tables and of the large dimensions."""
    sales(conn, share, seed)
    for table, (key, changes) in _UPDATES.items():
        chosen = f"SELECT ctid FROM {table} ORDER BY hashint8extended({key}, %(seed)s + 3) LIMIT %(rows)s"
        script = f"UPDATE {table} SET {changes} WHERE ctid IN ({chosen})"
        _run(conn, script, {"seed": seed, "rows": _rows(conn, table, share)})


def small(conn: Connection, seed: int) -> None:
    """A row or two of each small dimension."""
    _run(conn, _SMALL, {"seed": seed})


def _rows(conn: Connection, table: str, share: float) -> int:
    """How many rows the share is: at least one."""
    row = conn.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert row is not None
    return max(1, round(int(row[0]) * share))


def _run(conn: Connection, script: str, values: dict[str, int]) -> None:
    for statement in script.split(";"):
        if statement.strip():
            conn.execute(statement.encode(), values)
