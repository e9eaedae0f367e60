"""What a webhook's receiver may do to the relay, and what it may not."""

from __future__ import annotations

import datetime as dt
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from runnel.relay.config import Options, Pipeline
from runnel.relay.message import Message, Refused
from runnel.relay.relay import Relay
from runnel.relay.sinks.webhook import WebhookSink
from tests.e2e.helpers import eventually
from tests.relay.receiver import Receiver, receiving
from tests.relay.test_sinks import hook, pipeline, publish, value

Db = psycopg.Connection[Any]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


@pytest.fixture(autouse=True)
def outbox(db: Db) -> None:
    db.execute("SELECT tide.outbox_create('events')")


def test_what_was_taken_before_a_failure_is_not_sent_again(
    db: Db, relay: Callable[[], Relay], receiver: Receiver
) -> None:
    failing = iter([503] * 3)

    def answer(body: bytes) -> int:
        n = json.loads(body)["n"]
        return next(failing, 200) if n == 5 else 422 if n == 7 else 200

    receiver.answer = answer
    publish(db, *range(20))
    pipeline(db, "webhook", hook(receiver, max_retries=1))
    relay()
    eventually(lambda: value(db, "SELECT pending_count = 0 FROM tide.outboxes"))
    assert [json.loads(body)["n"] for _, body in receiver.got] == [n for n in range(20) if n != 7]
    assert receiver.asked == 19 + 3 + 2
    assert value(db, 'SELECT "offset" FROM tide.relay_dead_letters') == 8
    assert value(db, "SELECT delivered_count FROM tide.outboxes") == 19


def test_redirects_are_not_followed(db: Db, relay: Callable[[], Relay], receiver: Receiver) -> None:
    with receiving() as inside:
        receiver.answer, receiver.location = lambda _: 307, inside.url
        publish(db, 1)
        pipeline(db, "webhook", hook(receiver, max_retries=0))
        relay()
        eventually(lambda: value(db, "SELECT count(*) FROM tide.relay_dead_letters"))
        assert (receiver.asked, inside.asked) == (1, 0)
        assert value(db, "SELECT error FROM tide.relay_dead_letters") == "127.0.0.1 answered 307"


@pytest.mark.parametrize("found", [["127.0.0.1"], ["93.184.215.14", "10.0.0.7"], ["64:ff9b::7f00:1"], ["fd00::1"]])
def test_a_name_that_means_a_private_address_is_refused(found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answer = [(0, 0, 0, "", (address, 443)) for address in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    monkeypatch.setattr(socket, "create_connection", lambda *args: asked.append(args))
    sink = WebhookSink(Options(Pipeline("p", "events", "webhook", {"url": "https://hooks.example.org/"})))
    with pytest.raises(Refused, match=r"hooks\.example\.org is an address of a private network") as told:
        sink.send([message(1), message(2)])
    assert asked == [] and told.value.taken == 0


def test_the_connection_goes_to_the_address_that_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means something else a moment later is not looked up a second time."""
    asked: list[str] = []
    answers = iter([[(0, 0, 0, "", ("93.184.215.14", 443))], [(0, 0, 0, "", ("127.0.0.1", 443))]])
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: next(answers))

    def connect(address: tuple[str, int], *_: Any) -> None:
        asked.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    sink = WebhookSink(Options(Pipeline("p", "events", "webhook", {"url": "https://hooks.example.org/"})))
    with pytest.raises(Exception, match="does not answer"):
        sink.send([message(1)])
    assert asked == ["93.184.215.14"]


def test_names_that_are_no_headers_travel_all_the_same(db: Db, relay: Callable[[], Relay], receiver: Receiver) -> None:
    name = "заказы\n100 %"
    db.execute("SELECT tide.outbox_create(%s)", (name,))
    db.execute("SELECT tide.outbox_publish(%s, '1', %s)", (name, Jsonb({"event_type": "a\r\nX-Other: b"})))
    pipeline(db, "webhook", hook(receiver), outbox=name)
    relay()
    eventually(lambda: receiver.got)
    headers = receiver.got[0][0]
    assert headers["X-PgTide-Event-Type"] == "a%0D%0AX-Other: b" and "X-Other" not in headers
    assert headers["Idempotency-Key"].endswith("%0A100 %25:1")


def test_a_receiver_that_talks_too_much_is_cut_off(db: Db, relay: Callable[[], Relay], receiver: Receiver) -> None:
    receiver.text = b"x" * (4 << 20)
    publish(db, *range(3))
    pipeline(db, "webhook", hook(receiver))
    relay()
    eventually(lambda: value(db, "SELECT delivered_count FROM tide.outboxes") == 3)
    assert Counter(json.loads(body)["n"] for _, body in receiver.got) == Counter(range(3))


def message(offset: int) -> Message:
    return Message("events", offset, "{}", {}, dt.datetime.now(dt.UTC))
