"""To real brokers, and back into an inbox that a stream table reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

import runnel
from runnel.relay.relay import Relay
from tests.e2e.helpers import eventually
from tests.relay.brokers import Broker, kafka_server, nats_server, redis_server
from tests.relay.test_sinks import pipeline, publish, value

Db = psycopg.Connection[Any]
STARTS: dict[str, Callable[[Path], AbstractContextManager[Broker]]] = {
    "redis": redis_server,
    "nats": nats_server,
    "kafka": kafka_server,
}
ADDRESS = {"redis": "url", "nats": "url", "kafka": "brokers"}
TO: dict[str, dict[str, Any]] = {
    "redis": {"stream": "shop.{outbox}"},
    "nats": {"subject": "shop.{outbox}", "stream": "SHOP"},
    "kafka": {"topic": "shop.{outbox}"},
}
FROM: dict[str, dict[str, Any]] = {
    "redis": {"stream": "shop.events"},
    "nats": {"subject": "shop.events", "stream": "SHOP"},
    "kafka": {"topic": "shop.events"},
}


@pytest.fixture(params=["redis", "nats", pytest.param("kafka", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, Broker]]:
    with STARTS[request.param](folder) as started:
        yield request.param, started


@pytest.mark.slow
def test_there_and_back(db: Db, client: runnel.Client, relay: Callable[[], Relay], broker: tuple[str, Broker]) -> None:
    kind, server = broker
    db.execute("SELECT tide.outbox_create('events')")
    # Of another role, so that it is filled with that role's rights.
    db.execute("CREATE ROLE inbox_owner")
    db.execute("GRANT CREATE ON SCHEMA public TO inbox_owner")
    db.execute("SET ROLE inbox_owner")
    db.execute("SELECT tide.inbox_create('arrived', p_schema := 'public')")
    db.execute("RESET ROLE")
    client.create_stream_table(
        "sums", "SELECT count(*) AS n, sum((payload ->> 'n')::int) AS total FROM arrived_inbox", schedule="1s"
    )
    fast = {"retry_backoff_ms": 50, "retry_backoff_max_ms": 200}
    pipeline(db, kind, {ADDRESS[kind]: server.url, **TO[kind], **fast}, batch_size=7)
    relay()
    publish(db, *range(20))
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 20, 60)
    db.execute(
        "SELECT tide.relay_set_inbox('in', 'arrived', %s, p_source := %s)",
        (Jsonb({ADDRESS[kind]: server.url, **FROM[kind]}), kind),
    )
    eventually(lambda: value(db, "SELECT count(*) FROM arrived_inbox") == 20, 60)
    # The broker dies with messages on their way; nothing is lost, and nothing comes twice.
    server.kill()
    publish(db, *range(20, 40))
    eventually(lambda: value(db, "SELECT attempts FROM tide.relay_failures WHERE pipeline_id = 'p'"), 90)
    server.start()
    eventually(lambda: value(db, "SELECT count(*) FROM arrived_inbox") == 40, 120)
    # What was delivered before a crash, and is sent again after it.
    db.execute("UPDATE tide.relay_consumer_offsets SET last_change_id = 30 WHERE pipeline_id = 'p'")
    eventually(lambda: value(db, "SELECT lag = 0 AND delivered_count >= 50 FROM tide.relay_pipeline_lag"), 60)
    publish(db, 40)
    eventually(lambda: value(db, "SELECT count(*) FROM arrived_inbox") >= 41, 60)
    found = db.execute("SELECT event_id, (payload ->> 'n')::int FROM arrived_inbox ORDER BY id").fetchall()
    assert found == [(f"events:{n + 1}", n) for n in range(41)]
    client.refresh("sums")
    assert db.execute("SELECT n, total FROM sums").fetchall() == [(41, sum(range(41)))]
    client.drop_stream_table("sums")
    db.execute("SELECT tide.relay_delete('in')")
    db.execute("DROP OWNED BY inbox_owner CASCADE")
    db.execute("DROP ROLE inbox_owner")


@pytest.mark.slow
def test_what_a_broker_never_takes_is_put_aside(db: Db, relay: Callable[[], Relay], broker: tuple[str, Broker]) -> None:
    kind, server = broker
    db.execute("SELECT tide.outbox_create('events')")
    if kind == "redis":
        # The stream that the second message is meant for is no stream.
        _redis(server.url, "SET", "shop.b d", "taken")
    templates = {"redis": "stream", "nats": "subject", "kafka": "topic"}
    config = {ADDRESS[kind]: server.url, templates[kind]: "shop.{event_type}", "max_retries": 1}
    more = {"stream": "SHOP"} if kind == "nats" else {}
    pipeline(db, kind, {**config, **more, "retry_backoff_ms": 20})
    for n, event in enumerate(["a", "b d", "a", "a"]):
        db.execute("SELECT tide.outbox_publish('events', %s, %s)", (Jsonb({"n": n}), Jsonb({"event_type": event})))
    relay()
    eventually(lambda: value(db, "SELECT pending_count = 0 FROM tide.outboxes"), 60)
    assert db.execute('SELECT "offset", payload FROM tide.relay_dead_letters').fetchall() == [(2, {"n": 1})]
    assert value(db, "SELECT delivered_count FROM tide.outboxes") == 3
    error = str(value(db, "SELECT error FROM tide.relay_dead_letters"))
    assert "refused" in error and '"n"' not in error, "the error has the message in it"


@pytest.mark.slow
def test_a_full_redis_is_waited_for(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    with redis_server(folder) as server:
        db.execute("SELECT tide.outbox_create('events')")
        _redis(server.url, "CONFIG", "SET", "maxmemory", "1")
        pipeline(db, "redis", {"url": server.url, "stream": "s", "max_retries": 1, "retry_backoff_ms": 20,
                               "retry_backoff_max_ms": 50})  # fmt: skip
        publish(db, 1, 2)
        relay()
        eventually(lambda: (value(db, "SELECT attempts FROM tide.relay_failures") or 0) > 4)
        assert value(db, "SELECT count(*) FROM tide.relay_dead_letters") == 0
        _redis(server.url, "CONFIG", "SET", "maxmemory", "0")
        eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 2)
        assert _redis(server.url, "XLEN", "s") == 2


def _redis(url: str, *command: str) -> Any:
    import redis

    with redis.Redis.from_url(url) as client:
        return client.execute_command(*command)
