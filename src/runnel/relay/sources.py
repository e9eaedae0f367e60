"""Where messages come from: Redis streams, NATS JetStream, Kafka.

Each hands out what has arrived and keeps it until it is acknowledged, which happens when it is safe in the inbox. What
was not acknowledged comes again, and the inbox knows it by its key: the one that its sender gave it, else its place in
the stream it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runnel.relay.config import Options
from runnel.relay.message import Unavailable
from runnel.relay.nats import Nats
from runnel.relay.port import Arrival
from runnel.relay.sinks.brokers import KAFKA, REDIS, client_of, kafka_settings, redis_settings


class RedisSource:
    """A consumer group on a stream; what an earlier relay has read and not acknowledged comes first."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("url", "stream", "group", *REDIS))
        self._redis = client_of("redis", "redis")
        self._client = self._redis.Redis.from_url(
            options.text("url"), decode_responses=True, encoding_errors="replace", socket_connect_timeout=5,
            **redis_settings(options),
        )  # fmt: skip
        self._stream = options.text("stream")
        self._group = options.text("group", f"runnel-{options.pipeline.name}")
        self._from = "0"
        self._read: list[str] = []
        self._ready = False

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:
        """First what was left over, then what is new."""
        try:
            self._prepare()
            wait = max(1, int(seconds * 1000))
            found = self._client.xreadgroup(self._group, "relay", {self._stream: self._from}, limit, block=wait)
        except self._redis.RedisError as error:
            raise Unavailable(f"Redis does not answer: {type(error).__name__}") from error
        entries = found[0][1] if found else []
        if not entries:
            self._from = ">"
        self._read = [str(id_) for id_, _ in entries]
        return [self._arrival(str(id_), fields) for id_, fields in entries if fields]

    def acknowledge(self) -> None:
        """XACK."""
        try:
            if self._read:
                self._client.xack(self._stream, self._group, *self._read)
        except self._redis.RedisError as error:
            raise Unavailable(f"Redis does not answer: {type(error).__name__}") from error
        self._read = []

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _prepare(self) -> None:
        if self._ready:
            return
        try:
            self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except self._redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._ready = True

    def _arrival(self, id_: str, fields: Mapping[str, str]) -> Arrival:
        rest = {k: v for k, v in fields.items() if k not in ("payload", "dedup_key", "headers")}
        payload = as_json(fields["payload"]) if "payload" in fields else json.dumps(dict(fields))
        said = json.loads(as_json(fields.get("headers", "{}")))
        headers = {**(said if isinstance(said, dict) else {}), **(rest if "payload" in fields else {})}
        return Arrival(fields.get("dedup_key") or f"{self._stream}:{id_}", payload, headers)


class NatsSource:
    """A durable consumer of a JetStream stream."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("url", "subject", "stream", "durable"))
        self._nats = Nats(client_of("nats", "nats"), options.text("url"))
        self._subject, self._stream = options.text("subject"), options.maybe("stream")
        self._durable = options.text("durable", f"runnel-{options.pipeline.name}").replace(".", "-")
        self._subscription: Any = None
        self._read: list[Any] = []

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:
        """What waits for this consumer."""
        if self._subscription is None:
            self._subscription = self._nats.subscribe(self._subject, self._durable, self._stream)
        try:
            self._read = self._nats.fetch(self._subscription, limit, seconds)
        except Unavailable:
            self._subscription = None
            raise
        return [self._arrival(message) for message in self._read]

    def acknowledge(self) -> None:
        """Ack, and wait for the server's."""
        self._nats.acknowledge(self._read)
        self._read = []

    def close(self) -> None:
        """Close the connection."""
        self._nats.close()

    def _arrival(self, message: Any) -> Arrival:
        headers = dict(message.headers or {})
        place = f"{message.metadata.stream}:{message.metadata.sequence.stream}"
        key = headers.pop("Nats-Msg-Id", None) or place
        return Arrival(key, as_json(message.data.decode(errors="replace")), {**headers, "subject": message.subject})


class KafkaSource:
    """A consumer group on a topic; offsets are committed when the inbox has the messages."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("topic", "group", "auto_offset_reset", *KAFKA))
        kafka = client_of("kafka", "kafka")
        self._errors = client_of("kafka.errors", "kafka")
        try:
            self._consumer = kafka.KafkaConsumer(
                options.text("topic"), group_id=options.text("group", f"runnel-{options.pipeline.name}"),
                enable_auto_commit=False, auto_offset_reset=options.text("auto_offset_reset", "earliest"),
                **kafka_settings(options),
            )  # fmt: skip
        except self._errors.KafkaError as error:
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error

    def receive(self, limit: int, seconds: float) -> Sequence[Arrival]:
        """What waits in any partition."""
        try:
            polled = self._consumer.poll(timeout_ms=int(seconds * 1000), max_records=limit)
        except self._errors.KafkaError as error:
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error
        return [self._arrival(record) for records in polled.values() for record in records]

    def acknowledge(self) -> None:
        """Commit the offsets."""
        try:
            self._consumer.commit()
        except self._errors.KafkaError as error:
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close(autocommit=False)

    @staticmethod
    def _arrival(record: Any) -> Arrival:
        headers = {key: value.decode(errors="replace") for key, value in record.headers or ()}
        key = headers.pop("dedup_key", None) or f"{record.topic}:{record.partition}:{record.offset}"
        if record.key is not None:
            headers["key"] = record.key.decode(errors="replace")
        return Arrival(key, as_json((record.value or b"null").decode(errors="replace")), headers)


def as_json(text: str) -> str:
    """A text as it is if it is JSON, with all digits of its numbers; else wrapped.

    >>> as_json('{"a": 1.10}'), as_json("plain"), as_json("[NaN]")
    ('{"a": 1.10}', '{"text": "plain"}', '{"text": "[NaN]"}')
    """
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return wrapped(text)
    # The one character that PostgreSQL's JSON cannot hold.
    return text if "\\u0000" not in text else wrapped(text)


def wrapped(text: str) -> str:
    """A text that PostgreSQL does not take for JSON, as JSON that it takes."""
    return json.dumps({"text": text.replace("\0", "")})


def _refuse(constant: str) -> None:
    raise ValueError(constant)
