"""Names and parameters of pg-tide, as its documentation prints them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

Db = psycopg.Connection[Any]

OUTBOXES = "SELECT outbox_name, sink_type, config, batch_size, enabled FROM tide.relay_outbox_config WHERE name = 'p'"
INBOXES = "SELECT inbox_name, source_type, config, batch_size, enabled FROM tide.relay_inbox_config WHERE name = 'p'"


@pytest.fixture(autouse=True)
def boxes(db: Db) -> None:
    db.execute("SELECT tide.outbox_create('orders', 48, 50000)")
    db.execute("SELECT tide.outbox_create_if_not_exists('orders'), tide.outbox_create_if_not_exists(p_name => 'more')")
    db.execute("SELECT tide.inbox_create('payments', p_max_retries := 5, p_processed_retention_hours := 168)")
    assert db.execute("SELECT outbox_name, retention_hours FROM tide.tide_outbox_config ORDER BY 1").fetchall() == [
        ("more", 24),
        ("orders", 48),
    ]


FROM_AN_OUTBOX = [
    "tide.relay_set_outbox('p', 'orders', 'nats', '{\"url\": \"u\"}', batch_size => 200)",
    "tide.relay_set_outbox('p', 'orders', 'nats', jsonb_build_object('url', 'u', 'batch_size', 200))",
    'tide.relay_set_outbox(\'p\', \'orders\', \'any-label\', \'{"sink_type": "nats", "url": "u", "batch_size": 200}\')',
    'tide.relay_set_outbox(\'p\', \'orders\', \'{"sink_type": "nats", "url": "u", "batch_size": 200}\'::jsonb)',
    'tide.relay_set_outbox_v2(\'{"name": "p", "outbox": "orders", "sink_type": "nats", '
    '"config": {"url": "u"}, "batch_size": 200, "source_mode": "native"}\')',
]


def test_a_pipeline_from_an_outbox(db: Db) -> None:
    for call in FROM_AN_OUTBOX:
        db.execute(f"SELECT {call}".encode())
        assert db.execute(OUTBOXES.encode()).fetchall() == [("orders", "nats", {"url": "u"}, 200, True)], call
        db.execute("SELECT tide.relay_disable('p')")
        listed = db.execute("SELECT tide.relay_list_configs()").fetchone()
        assert listed == ([{"name": "p", "direction": "outbox", "enabled": False}],)
        db.execute("SELECT tide.relay_enable('p')")
        db.execute("SELECT tide.relay_delete('p')")
        assert db.execute("SELECT tide.relay_list_configs()").fetchone() == ([],)


TO_AN_INBOX = [
    "tide.relay_set_inbox('p', 'payments', '{\"url\": \"u\"}', p_batch_size := 50, p_source := 'nats')",
    'tide.relay_set_inbox(\'p\', \'payments\', \'{"source_type": "nats", "url": "u", "batch_size": 50}\')',
    "tide.relay_set_inbox_v2(jsonb_build_object('name', 'p', 'inbox', 'payments', 'source', 'nats', "
    "'config', jsonb_build_object('url', 'u'), 'batch_size', 50, 'max_retries', 3))",
]


def test_a_pipeline_to_an_inbox(db: Db) -> None:
    for call in TO_AN_INBOX:
        db.execute(f"SELECT {call}".encode())
        assert db.execute(INBOXES.encode()).fetchall() == [("payments", "nats", {"url": "u"}, 50, True)], call
        db.execute("SELECT tide.relay_delete('p')")


MISTAKES = [
    ("tide.relay_set_outbox('p', 'orders', 'rabbitmq')", "there is no sink rabbitmq"),
    ("tide.relay_set_inbox('p', 'payments', p_source => 'sqs')", "there is no source sqs"),
    ("tide.relay_set_inbox('p', 'payments')", "p_source is missing"),
    ('tide.relay_set_inbox_v2(\'{"name": "p", "from": 1}\')', "missing: inbox; unknown: from"),
    ("tide.outbox_publish('nowhere', '{}')", 'there is no outbox "nowhere"'),
]


def test_mistakes_are_named(db: Db) -> None:
    for call, told in MISTAKES:
        with pytest.raises(psycopg.Error, match=told):
            db.execute(f"SELECT {call}".encode())
