"""INT-10 of the roadmap, call by call: install both, attach an outbox, configure a relay, and watch data flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runnel.relay.relay import Relay
from tests.e2e.helpers import eventually

STEPS = """
CREATE EXTENSION IF NOT EXISTS pg_tide;
CREATE EXTENSION IF NOT EXISTS pg_trickle;

CREATE TABLE orders (
    order_id   BIGSERIAL    PRIMARY KEY,
    region     TEXT         NOT NULL,
    amount     NUMERIC(10,2) NOT NULL,
    created_at TIMESTAMPTZ  NOT NULL DEFAULT now()
);

SELECT pgtrickle.create_stream_table(
    'revenue_by_region',
    query        => $$
        SELECT region, SUM(amount) AS total_revenue, COUNT(*) AS order_count FROM orders GROUP BY region
    $$,
    schedule     => '1s',
    refresh_mode => 'DIFFERENTIAL'
);

SELECT pgtrickle.attach_outbox('revenue_by_region');

SELECT tide.relay_set_outbox(
    outbox_name  => 'revenue_by_region',
    sink_type    => 'ducklake',
    sink_options => jsonb_build_object('catalog_db', current_database(), 's3_access_key', '', 's3_secret_key', '')
);

INSERT INTO orders (region, amount) VALUES ('us-east', 99.00), ('eu-west', 155.50), ('ap-south', 42.00);
"""
DELIVERED = "SELECT delivered_count, failed_count, pending_count FROM tide.outboxes"


@pytest.mark.usefixtures("engine")
def test_as_it_is_told(db: psycopg.Connection[Any], relay: Callable[[], Relay], duck: Callable[..., Any]) -> None:
    relay()
    for step in STEPS.split(";\n\n"):
        db.execute(step.encode())
    query = "SELECT region, total_revenue, order_count FROM revenue_by_region"
    # Nobody calls for a refresh: the schedule does it, and the relay follows.
    eventually(lambda: len(db.execute(query.encode()).fetchall()) == 3, 60)
    eventually(lambda: db.execute(DELIVERED.encode()).fetchone() == (2, 0, 0), 60)
    assert duck().bag(query) == Counter(db.execute(query.encode()).fetchall())
    provenance = "SELECT stream_table_name, sum(delta_row_count) FROM pgtrickle.pgt_ducklake_provenance GROUP BY 1"
    assert db.execute(provenance.encode()).fetchall() == [("revenue_by_region", 3)]
    db.execute("SELECT tide.relay_remove_outbox('revenue_by_region')")
    db.execute("SELECT pgtrickle.drop_stream_table('revenue_by_region')")
    assert db.execute("SELECT count(*) FROM tide.outboxes").fetchone() == (0,)


def test_altered_columns_begin_anew(
    db: psycopg.Connection[Any], relay: Callable[[], Relay], duck: Callable[..., Any], client: Any, orders: None
) -> None:
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    db.execute("SELECT tide.relay_set_outbox('revenue', 'ducklake')")
    relay()
    lag = "SELECT lag FROM tide.relay_pipeline_lag"
    eventually(lambda: db.execute(lag.encode()).fetchone() == (0,))
    client.alter_stream_table("revenue", query="SELECT region, max(amount) AS most FROM orders GROUP BY region")
    db.execute("INSERT INTO orders (region, amount) VALUES ('eu', 7)")
    client.refresh("revenue")
    # The relay looks at the rights of a pipeline now and then, by the table as it is now.
    now = "SELECT c.relid = 'revenue'::regclass FROM tide.tide_outbox_config c"
    assert db.execute(now.encode()).fetchone() == (True,)
    eventually(lambda: db.execute(lag.encode()).fetchone() == (0,))
    query = "SELECT region, most FROM revenue"
    assert duck().bag(query) == Counter(db.execute(query.encode()).fetchall())
    db.execute("SELECT pgtrickle.detach_outbox('revenue')")
    with pytest.raises(psycopg.Error, match="outbox not attached"):
        db.execute("SELECT pgtrickle.detach_outbox('revenue')")
    db.execute("SELECT pgtrickle.detach_outbox('revenue', if_exists => true)")
    db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    with pytest.raises(psycopg.Error, match="outbox already attached"):
        db.execute("SELECT pgtrickle.attach_outbox('revenue')")
    eventually(lambda: db.execute(lag.encode()).fetchone() == (0,))
    assert duck().bag(query) == Counter(db.execute(query.encode()).fetchall())
