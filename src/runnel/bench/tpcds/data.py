"""The 24 tables, filled by DuckDB's dsdgen, with its types: keys are bigint, amounts decimal(7,2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from runnel.bench.generator import copy_rows, generator
from runnel.bench.workload import Connection

KEYS: Mapping[str, str] = {
    "call_center": "cc_call_center_sk", "catalog_page": "cp_catalog_page_sk", "customer": "c_customer_sk",
    "customer_address": "ca_address_sk", "customer_demographics": "cd_demo_sk", "date_dim": "d_date_sk",
    "household_demographics": "hd_demo_sk", "income_band": "ib_income_band_sk", "item": "i_item_sk",
    "promotion": "p_promo_sk", "reason": "r_reason_sk", "ship_mode": "sm_ship_mode_sk", "store": "s_store_sk",
    "time_dim": "t_time_sk", "warehouse": "w_warehouse_sk", "web_page": "wp_web_page_sk", "web_site": "web_site_sk",
    "inventory": "inv_date_sk, inv_item_sk, inv_warehouse_sk",
    "store_sales": "ss_item_sk, ss_ticket_number", "store_returns": "sr_item_sk, sr_ticket_number",
    "catalog_sales": "cs_item_sk, cs_order_number", "catalog_returns": "cr_item_sk, cr_order_number",
    "web_sales": "ws_item_sk, ws_order_number", "web_returns": "wr_item_sk, wr_order_number",
}  # fmt: skip
"""The tables and their primary keys, as the specification has them: dimensions first."""

_FACTS = ("inventory", "store_sales", "store_returns", "catalog_sales", "catalog_returns", "web_sales", "web_returns")


def load(conn: Connection, scale: float, say: Callable[[str], None]) -> None:
    """Generate the tables in DuckDB and stream them into PostgreSQL with COPY; then keys and indexes."""
    with generator("tpcds") as duck:
        began = time.monotonic()
        duck.execute(f"CALL dsdgen(sf = {scale})")
        say(f"TPC-DS generated at scale {scale:g} ({time.monotonic() - began:.1f} s)")
        for table, key in KEYS.items():
            began = time.monotonic()
            columns = [(name, kind) for name, kind, *_ in duck.execute(f"DESCRIBE {table}").fetchall()]
            conn.execute(f"CREATE TABLE {table} ({', '.join(f'{n} {k}' for n, k in columns)})".encode())
            rows = copy_rows(duck, f"FROM {table}", conn, table)
            conn.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({key})".encode())
            if table in _FACTS:
                # One index per dimension, as for TPC-H.
                for name in (n for n, _ in columns if n.endswith("_sk") and not key.startswith(n)):
                    conn.execute(f"CREATE INDEX ON {table} ({name})".encode())
            say(f"  {table}: {rows:,} rows ({time.monotonic() - began:.1f} s)")
    # Query 59 divides by the sales of a weekday in a store. At a small scale, rounds of changes may leave nothing there
    # but sales at a price of zero, and then PostgreSQL has no answer either.
    conn.execute("UPDATE store_sales SET ss_sales_price = 0.01 WHERE ss_sales_price = 0")
    for table, column in (
        ("customer", "c_current_addr_sk"),
        ("customer", "c_current_cdemo_sk"),
        ("customer", "c_current_hdemo_sk"),
        ("item", "i_item_id"),
        ("date_dim", "d_date"),
        ("date_dim", "d_month_seq"),
        ("date_dim", "d_week_seq"),
    ):
        conn.execute(f"CREATE INDEX ON {table} ({column})".encode())
