"""Messages of an application to each kind of sink."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner

from runnel.cli.main import app
from runnel.relay.relay import Relay
from tests.e2e.helpers import eventually
from tests.lake.s3 import S3
from tests.relay.receiver import Receiver, receiving

Db = psycopg.Connection[Any]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


@pytest.fixture
def outbox(db: Db) -> str:
    db.execute("SELECT tide.outbox_create('events')")
    return "events"


def publish(db: Db, *numbers: int) -> None:
    for n in numbers:
        db.execute("SELECT tide.outbox_publish('events', %s, %s)", (Jsonb({"n": n}), Jsonb({"event_type": "made"})))


def pipeline(db: Db, sink: str, config: dict[str, Any], **more: Any) -> None:
    wanted = {"name": "p", "outbox": "events", "sink_type": sink, "config": config, **more}
    db.execute("SELECT tide.relay_set_outbox_v2(%s)", (Jsonb(wanted),))


def value(db: Db, query: str) -> Any:
    row = db.execute(query.encode()).fetchone()
    return row and row[0]


def hook(receiver: Receiver, **more: Any) -> dict[str, Any]:
    fast = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 50}
    return {"url": receiver.url, "allow_http": True, "ssrf_protection": False, **fast, **more}


@pytest.mark.usefixtures("outbox")
def test_files(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    publish(db, 1, 2, 3)
    db.execute("""SELECT tide.outbox_publish('events', '{"exact": 12345678901234567890.123456789012345678901}')""")
    pipeline(db, "file", {"path": f"{folder}/nd"}, batch_size=2)
    relay()
    files = eventually(lambda: len(found := sorted(folder.rglob("*.ndjson"))) == 2 and found)
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert [json.loads(line)["payload"] for line in lines][:3] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert [json.loads(line)["dedup_key"] for line in lines] == [f"events:{n}" for n in (1, 2, 3, 4)]
    assert '"exact": 12345678901234567890.123456789012345678901' in lines[3]


@pytest.mark.usefixtures("outbox")
def test_parquet(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    publish(db, 1, 2)
    pipeline(db, "file", {"path": str(folder), "format": "parquet"})
    relay()
    (file,) = eventually(lambda: list(folder.glob("*.parquet")))
    assert pq.read_table(file)["payload"].to_pylist() == ['{"n": 1}', '{"n": 2}']


@pytest.mark.usefixtures("outbox")
@pytest.mark.parametrize("format", ["ndjson", "parquet"])
def test_files_in_a_store(
    db: Db, relay: Callable[[], Relay], s3: S3, bucket: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, given in s3.environment.items():
        monkeypatch.setenv(key, given)
    publish(db, 1, 2, 3)
    pipeline(db, "file", {"path": f"{bucket}out", "format": format}, batch_size=2)
    relay()
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 3)
    names = sorted(s3.files(bucket))
    assert names == [f"out/{n:020d}.{format}" for n in (1, 3)]
    bodies = [(s3.root / bucket.removeprefix("s3://") / name).read_bytes() for name in names]
    if format == "parquet":
        payloads = [json.loads(p) for body in bodies for p in pq.read_table(io.BytesIO(body))["payload"].to_pylist()]
    else:
        payloads = [json.loads(line)["payload"] for body in bodies for line in body.decode().splitlines()]
    assert payloads == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.usefixtures("outbox")
def test_webhooks_are_signed_and_come_in_order(db: Db, relay: Callable[[], Relay], receiver: Receiver) -> None:
    failing = iter([503, 429])
    receiver.answer = lambda _: next(failing, 200)
    publish(db, *range(10))
    pipeline(db, "webhook", hook(receiver, headers={"X-Shop": "a"}, **{"signing_secret": "hush"}))
    relay()
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 10)
    seen = list(dict.fromkeys(headers["Idempotency-Key"] for headers, _ in receiver.got))
    assert seen == [f"events:{n}" for n in range(1, 11)]
    headers, body = receiver.got[0]
    stamp = headers["X-PgTide-Timestamp"]
    proof = hmac.new(b"hush", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["X-PgTide-Signature"] == f"sha256={proof}"
    assert (headers["X-Shop"], headers["X-PgTide-Event-Type"], body) == ("a", "made", b'{"n": 0}')
    assert value(db, "SELECT failed_count FROM tide.outboxes") == 2


@pytest.mark.usefixtures("outbox")
def test_what_is_refused_is_put_aside_and_can_be_sent_again(
    db: Db, relay: Callable[[], Relay], receiver: Receiver
) -> None:
    receiver.answer = lambda body: 422 if json.loads(body)["n"] == 2 else 200
    publish(db, 1, 2, 3)
    pipeline(db, "webhook", hook(receiver, max_retries=1))
    relay()
    eventually(lambda: value(db, "SELECT pending_count = 0 FROM tide.outboxes"))
    assert list(dict.fromkeys(body for _, body in receiver.got)) == [b'{"n": 1}', b'{"n": 3}']
    (letter,) = db.execute('SELECT "offset", payload, error FROM tide.relay_dead_letters').fetchall()
    assert letter == (2, {"n": 2}, "127.0.0.1 answered 422")
    assert value(db, "SELECT last_error FROM tide.relay_failures") == "127.0.0.1 answered 422"
    receiver.answer = lambda _: 200
    assert value(db, "SELECT tide.relay_replay('p')") == 1
    eventually(lambda: not value(db, "SELECT count(*) FROM tide.relay_dead_letters"))
    assert receiver.got[-1][1] == b'{"n": 2}'


@pytest.mark.usefixtures("outbox")
def test_private_addresses_are_refused(db: Db, relay: Callable[[], Relay], receiver: Receiver) -> None:
    publish(db, 1)
    pipeline(db, "webhook", {**hook(receiver, max_retries=0), "ssrf_protection": True})
    relay()
    eventually(lambda: value(db, "SELECT count(*) FROM tide.relay_dead_letters"))
    assert receiver.asked == 0
    assert "private network" in value(db, "SELECT error FROM tide.relay_dead_letters")


@pytest.mark.usefixtures("outbox")
def test_a_dead_sink_delays_no_other(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    pipeline(db, "webhook", {"url": "https://127.0.0.1:1/", "ssrf_protection": False, "retry_backoff_ms": 50})
    pipeline(db, "file", {"path": str(folder)}, name="other")
    relay()
    publish(db, 1)
    eventually(lambda: list(folder.glob("*.ndjson")))
    eventually(lambda: value(db, "SELECT attempts FROM tide.relay_failures WHERE pipeline_id = 'p'"))
    assert value(db, "SELECT lag FROM tide.relay_pipeline_lag WHERE pipeline_id = 'p'") == 1


@pytest.mark.usefixtures("outbox")
def test_another_postgresql(db: Db, relay: Callable[[], Relay], dsn: str) -> None:
    db.execute("SELECT tide.inbox_create('there', p_schema := 'public')")
    publish(db, 1, 2)
    pipeline(db, "pg-inbox", {"postgres_url": dsn, "inbox": "there", "schema": "public"})
    relay()
    eventually(lambda: value(db, "SELECT count(*) FROM there_inbox") == 2)
    # As after a crash between the delivery and the offset: the same again.
    db.execute("UPDATE tide.relay_consumer_offsets SET last_change_id = 0")
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 4)
    assert db.execute("SELECT event_id, payload FROM there_inbox ORDER BY id").fetchall() == [
        ("events:1", {"n": 1}),
        ("events:2", {"n": 2}),
    ]


@pytest.mark.usefixtures("outbox")
def test_what_another_inbox_refuses_is_put_aside(db: Db, relay: Callable[[], Relay], dsn: str) -> None:
    db.execute("SELECT tide.inbox_create('there', p_schema := 'public')")
    db.execute("ALTER TABLE there_inbox ADD CHECK ((payload ->> 'n')::int <> 3)")
    publish(db, *range(6))
    config = {"target_url": dsn, "inbox_name": "there", "schema": "public", "max_retries": 1, "retry_backoff_ms": 10}
    pipeline(db, "inbox", config)
    relay()
    eventually(lambda: value(db, "SELECT pending_count = 0 FROM tide.outboxes"))
    found = db.execute("SELECT (payload ->> 'n')::int FROM there_inbox ORDER BY id").fetchall()
    assert [n for (n,) in found] == [0, 1, 2, 4, 5]
    (payload, error) = db.execute("SELECT payload, error FROM tide.relay_dead_letters").fetchone() or ({}, "")
    assert payload == {"n": 3} and error.startswith("the inbox refused: ") and "check constraint" in error


@pytest.mark.usefixtures("outbox")
def test_late_commits_are_not_passed_over(db: Db, dsn: str, relay: Callable[[], Relay], folder: Path) -> None:
    pipeline(db, "file", {"path": str(folder)})
    relay()
    with psycopg.connect(dsn) as early:
        publish(early, 1)
        publish(db, 2)
        eventually(lambda: list(folder.glob("*.ndjson")))
        early.commit()
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 2)
    lines = [json.loads(line) for file in sorted(folder.glob("*")) for line in file.read_text().splitlines()]
    assert [(line["offset"], line["payload"]["n"]) for line in lines] == [(1, 2), (2, 1)]


@pytest.mark.usefixtures("outbox")
def test_what_is_rolled_back_was_never_said(db: Db, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        publish(other, 1)
        other.rollback()
    assert value(db, "SELECT count(*) FROM tide.tide_outbox_messages") == 0


@pytest.mark.usefixtures("outbox")
def test_a_rate(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    publish(db, *range(30))
    pipeline(db, "file", {"path": str(folder), "rate_limit": 10})
    relay()
    eventually(lambda: (value(db, "SELECT delivered_count FROM tide.outboxes") or 0) >= 10)
    assert value(db, "SELECT delivered_count FROM tide.outboxes") < 30


@pytest.mark.usefixtures("outbox")
def test_a_rehearsal_sends_nothing(
    db: Db, relay: Callable[[], Relay], receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="runnel.relay")
    publish(db, 1, 2)
    pipeline(db, "webhook", hook(receiver, dry_run=True))
    relay()
    eventually(lambda: value(db, "SELECT lag = 0 FROM tide.relay_pipeline_lag"))
    assert receiver.asked == 0
    said = [text for text in caplog.messages if "dry run" in text]
    assert said == [
        f"relay p, dry run: would send events:{n} to webhook, key 'events', 8 bytes" for n in (1, 2)
    ]  # fmt: skip
    pipeline(db, "webhook", hook(receiver))
    publish(db, 3)
    eventually(lambda: receiver.got)
    assert [body for _, body in receiver.got] == [b'{"n": 3}']


@pytest.mark.usefixtures("outbox")
def test_what_waits_can_be_looked_at(db: Db, dsn: str, receiver: Receiver) -> None:
    publish(db, 1, 2)
    pipeline(db, "webhook", hook(receiver))
    shown = CliRunner().invoke(app, ["relay", "--dry-run", "--dsn", dsn])
    assert shown.exit_code == 0, shown.output
    assert "p: events -> webhook, from 1" in shown.output
    assert '"dedup_key": "events:2"' in shown.output and '"payload": {"n": 2}' in shown.output
    assert receiver.asked == 0 and value(db, "SELECT lag FROM tide.relay_pipeline_lag") == 2


@pytest.mark.usefixtures("outbox")
def test_a_slip_of_the_pen_is_named(db: Db, relay: Callable[[], Relay], folder: Path) -> None:
    pipeline(db, "file", {"path": str(folder), "fromat": "parquet"})
    publish(db, 1)
    relay()
    told = eventually(lambda: value(db, "SELECT last_error FROM tide.relay_failures"))
    assert told == "pipeline p: there is no option fromat"
    pipeline(db, "file", {"path": str(folder)})
    eventually(lambda: list(folder.glob("*.ndjson")))


@pytest.mark.usefixtures("outbox")
def test_secrets_come_from_the_environment_and_are_not_shown(
    db: Db, relay: Callable[[], Relay], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "from outside")
    pipeline(db, "webhook", hook(receiver, **{"signing_secret": "${env:HOOK_SECRET}"}))
    publish(db, 1)
    relay()
    eventually(lambda: receiver.got)
    headers, body = receiver.got[0]
    proof = hmac.new(b"from outside", f"{headers['X-PgTide-Timestamp']}.".encode() + body, hashlib.sha256)
    assert headers["X-PgTide-Signature"] == f"sha256={proof.hexdigest()}"
    pipeline(db, "webhook", hook(receiver, **{"signing_secret": "plain"}))
    assert "plain" not in str(value(db, "SELECT tide.relay_get_config('p')"))
    assert value(db, "SELECT tide.relay_list_configs()") == [{"name": "p", "direction": "outbox", "enabled": True}]


def test_relays_share_the_work(db: Db, relay: Callable[[], Relay], folder: Path, outbox: str) -> None:
    for n in range(4):
        pipeline(db, "file", {"path": f"{folder}/{n}"}, name=f"p{n}", batch_size=1)
    first = relay()
    relay()
    publish(db, *range(20))
    eventually(lambda: value(db, "SELECT min(delivered_count) FROM tide.relay_pipeline_lag") == 20)
    first.close()
    publish(db, *range(20))
    eventually(lambda: value(db, "SELECT min(delivered_count) FROM tide.relay_pipeline_lag") == 40)
    assert value(db, "SELECT max(delivered_count) FROM tide.relay_pipeline_lag") == 40
    for n in range(4):
        assert len(list((folder / str(n)).glob("*.ndjson"))) == 40
