"""Webhooks of others into an inbox: who gets in, and that nothing is taken twice."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from psycopg.types.json import Jsonb

import runnel
from runnel.http.server import HttpServer
from runnel.relay.relay import Relay
from runnel.relay.sinks.webhook import signature
from runnel.relay.webhooks import Webhooks
from tests.e2e.helpers import eventually
from tests.iceberg.clients import serving

Db = psycopg.Connection[Any]
SECRET = "a-secret-of-the-test"  # noqa: S105


@pytest.fixture
def http(dsn: str, tmp_path: Path) -> Iterator[HttpServer]:
    with serving(dsn, tmp_path / "http", loopback_reads=False, hooks=Webhooks(dsn)) as server:
        yield server


@pytest.fixture
def inbox(db: Db) -> str:
    db.execute("SELECT tide.inbox_create('arrived', p_schema := 'public')")
    return "arrived"


def pipeline(db: Db, **config: Any) -> None:
    db.execute("SELECT tide.relay_set_inbox('shop', 'arrived', %s, p_source := 'webhook')", (Jsonb(config),))


def send(http: HttpServer, body: bytes, headers: dict[str, str], name: str = "shop") -> int:
    return requests.post(f"{http.url}/hooks/{name}", data=body, headers=headers, timeout=20).status_code


def signed(body: bytes, key: str, *, at: float | None = None, secret: str = SECRET) -> dict[str, str]:
    return {"Idempotency-Key": key, **signature(secret, body, int(at or time.time()))}


def taken(db: Db) -> Counter[Any]:
    rows = db.execute("SELECT event_id, source, payload::text FROM arrived_inbox").fetchall()
    return Counter((key, source, json.dumps(json.loads(payload))) for key, source, payload in rows)


@pytest.mark.usefixtures("inbox", "engine")
def test_only_who_knows_the_secret_gets_in_and_only_once(db: Db, http: HttpServer) -> None:
    pipeline(db, signing_secret=SECRET)
    body = b'{"n": 1.10}'
    assert [send(http, body, signed(body, "a")) for _ in range(2)] == [202, 202]
    other = b'{"n": 2}'
    assert send(http, other, signed(body, "b")) == 401  # another body was signed
    assert send(http, other, signed(other, "b", secret="guessed")) == 401  # noqa: S106
    assert send(http, other, signed(other, "b", at=time.time() - 900)) == 401  # overheard a while ago
    assert send(http, other, {}) == 401
    assert send(http, other, signed(other, "b"), name="another") == 404
    assert send(http, b"x" * (11 << 20), signed(other, "b")) == 413
    plain = "kein JSON: ü".encode()
    assert send(http, plain, signed(plain, "c")) == 202
    assert taken(db) == Counter([("a", "shop", '{"n": 1.1}'), ("c", "shop", json.dumps({"text": plain.decode()}))])
    (headers,) = db.execute("SELECT headers FROM arrived_inbox WHERE event_id = 'a'").fetchone() or ({},)
    assert not any("signature" in name or "authorization" in name for name in headers)
    (count,) = db.execute("SELECT received_count FROM tide.relay_inbox_config").fetchone() or (0,)
    assert count == 3


@pytest.mark.usefixtures("inbox", "engine")
def test_other_ways_to_sign(db: Db, http: HttpServer) -> None:
    pipeline(db, signing_secret=SECRET, signature_header="X-Hub-Signature-256", id_header="X-Event")
    body = b'{"of": "a service"}'
    alone = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert send(http, body, {"X-Hub-Signature-256": f"sha256={alone}", "X-Event": "7"}) == 202
    assert send(http, body, signed(body, "8")) == 401
    pipeline(db, token="a-token")  # noqa: S106
    assert send(http, body, {"Authorization": "Bearer a-token"}) == 202
    assert send(http, body, {"Authorization": "Bearer another"}) == 401
    pipeline(db)
    assert send(http, body, {"Authorization": "Bearer "}) == 401
    keys = [key for (key,) in db.execute("SELECT event_id FROM arrived_inbox ORDER BY received_at")]
    assert keys[0] == "7" and len(keys) == 2


@pytest.mark.usefixtures("inbox", "engine")
def test_as_services_sign(db: Db, http: HttpServer) -> None:
    body, now, old = b'{"of": "a service"}', str(int(time.time())), str(int(time.time()) - 900)

    def digest(key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, hashlib.sha256).digest()

    pipeline(db, signature_secret=SECRET, signature_scheme="github")
    assert send(http, body, {"X-Hub-Signature-256": f"sha256={digest(SECRET.encode(), body).hex()}"}) == 202
    assert send(http, b"other", {"X-Hub-Signature-256": f"sha256={digest(SECRET.encode(), body).hex()}"}) == 401

    pipeline(db, signature_secret=SECRET, signature_scheme="stripe", idempotency_header="X-Id")
    for at, answer in ((now, 202), (old, 401)):
        proof = digest(SECRET.encode(), f"{at}.".encode() + body).hex()
        assert send(http, body, {"Stripe-Signature": f"t={at},v1=00,v1={proof},v0=no", "X-Id": "s1"}) == answer
    assert send(http, body, {"Stripe-Signature": f"t={now},v0={proof}"}) == 401

    key = b"a key of svix"
    pipeline(db, signing_secret="whsec_" + base64.b64encode(key).decode(), signature_scheme="svix")
    for name, at, answer in (("svix", now, 202), ("webhook", now, 202), ("svix", old, 401)):
        proof = base64.b64encode(digest(key, f"{name}1.{at}.".encode() + body)).decode()
        headers = {f"{name}-id": f"{name}1", f"{name}-timestamp": at, f"{name}-signature": f"v1,AAAA v1,{proof}"}
        assert send(http, body, headers) == answer
    keys = {key for (key,) in db.execute("SELECT event_id FROM arrived_inbox")}
    assert keys > {"s1", "svix1", "webhook1"} and len(keys) == 4

    pipeline(db, signing_secret=SECRET, signature_scheme="carrier pigeon")
    assert send(http, body, signed(body, "a")) == 503
    (error,) = db.execute("SELECT last_error FROM tide.relay_inbox_config").fetchone() or ("",)
    assert "no signature_scheme carrier pigeon" in error


@pytest.mark.usefixtures("inbox", "engine")
def test_trouble_is_told_to_the_owner_and_not_to_the_sender(db: Db, http: HttpServer) -> None:
    pipeline(db, signing_secret=SECRET, typo=1)
    body = b"{}"
    assert send(http, body, signed(body, "a")) == 503
    (error,) = db.execute("SELECT last_error FROM tide.relay_inbox_config").fetchone() or ("",)
    assert "no option typo" in error
    pipeline(db, signing_secret=SECRET)
    assert send(http, body, signed(body, "a")) == 202
    (error,) = db.execute("SELECT last_error FROM tide.relay_inbox_config").fetchone() or ("",)
    assert error is None


@pytest.mark.usefixtures("inbox")
def test_from_an_outbox_through_a_webhook_to_a_stream_table(
    db: Db, http: HttpServer, client: runnel.Client, relay: Callable[[], Relay]
) -> None:
    pipeline(db, signing_secret=SECRET)
    client.create_stream_table(
        "totals", "SELECT payload ->> 'k' AS k, sum((payload ->> 'n')::int) AS n FROM arrived_inbox GROUP BY 1"
    )
    db.execute("SELECT tide.outbox_create('events')")
    config = {"url": f"{http.url}/hooks/shop", "allow_http": True, "ssrf_protection": False, "signing_secret": SECRET}
    db.execute("SELECT tide.relay_set_outbox('out', 'events', 'webhook', %s)", (Jsonb(config),))
    relay()
    for n in range(6):
        db.execute("SELECT tide.outbox_publish('events', %s)", (Jsonb({"k": f"k{n % 2}", "n": n}),))
    eventually(lambda: db.execute("SELECT count(*) = 6 FROM arrived_inbox").fetchone() == (True,))
    client.refresh("totals")
    assert Counter(db.execute("SELECT k, n FROM totals").fetchall()) == Counter([("k0", 6), ("k1", 9)])
