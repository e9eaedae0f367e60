"""Redis streams, NATS JetStream and Kafka: their clients are extras, imported when a pipeline uses them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from runnel.errors import UserError
from runnel.relay.config import Options
from runnel.relay.message import Message, Refused, Unavailable, header_text, one_by_one

_NOT_NOW = frozenset({"OOM", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "LOADING",
                      "BUSY", "NOAUTH", "NOPERM", "WRONGPASS"})  # fmt: skip
"""What Redis says when the message is not to blame: its first word, or the exception that stands for it."""
_NOT_NOW_ERRORS = frozenset({"ConnectionError", "TimeoutError", "BusyLoadingError", "OutOfMemoryError", "ReadOnlyError",
                             "NoPermissionError", "ClusterDownError", "TryAgainError", "MasterDownError"})  # fmt: skip
REDIS = ("password", "database")
KAFKA = ("brokers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password", "tls_enabled")
"""Options of both ways."""
KAFKA_SECONDS = 10
"""After so long a broker is taken not to answer."""


def client_of(module: str, extra: str) -> Any:
    """The client of a broker; or which package is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"the client of {extra} is not installed", hint=f"pip install 'runnel[{extra}]'", sqlstate="0A000"
        ) from None


class RedisSink:
    """XADD to a stream; the deduplication key is a field of the entry."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("url", "stream", "maxlen", *REDIS))
        self._redis = client_of("redis", "redis")
        self._client = self._redis.Redis.from_url(
            options.text("url"), socket_timeout=10, socket_connect_timeout=5, **redis_settings(options)
        )
        self._stream = options.text("stream", "{outbox}")
        self._maxlen = int(options.number("maxlen", 0)) or None

    def send(self, messages: Sequence[Message]) -> None:
        """All or nothing, in one MULTI."""
        try:
            with self._client.pipeline(transaction=True) as pipe:
                for m in messages:
                    entry = {"dedup_key": m.dedup_key, "key": m.key, "event_type": m.event_type, "payload": m.payload,
                             "headers": json.dumps(dict(m.headers))}  # fmt: skip
                    pipe.xadd(m.filled(self._stream), entry, maxlen=self._maxlen)
                pipe.execute()
        except self._redis.RedisError as error:
            raise _of_redis(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class NatsSink:
    """Publishes to a JetStream subject; the server itself drops what comes twice within its window (`Nats-Msg-Id`)."""

    def __init__(self, options: Options) -> None:
        from runnel.relay.nats import Nats  # noqa: PLC0415

        options.refuse_unknown(("url", "subject", "stream"))
        self._nats = Nats(client_of("nats", "nats"), options.text("url"))
        self._subject = options.text("subject", "{outbox}")
        self._stream = options.maybe("stream")
        self._ready = False

    def send(self, messages: Sequence[Message]) -> None:
        """Each is acknowledged before the next."""
        if not self._ready and self._stream is not None:
            self._nats.ensure_stream(self._stream, [self._subject.split("{")[0] + ">" if "{" in self._subject
                                                    else self._subject])  # fmt: skip
        self._ready = True
        one_by_one(messages, self._publish)

    def _publish(self, m: Message) -> None:
        named = {"Nats-Msg-Id": m.dedup_key, "X-Event-Type": m.event_type, "X-Key": m.key}
        headers = {name: header_text(value) for name, value in named.items()}
        self._nats.publish(m.filled(self._subject), m.payload.encode(), headers)

    def close(self) -> None:
        """Close the connection."""
        self._nats.close()


class KafkaSink:
    """Sends to a topic, keyed, so that messages of one key stay in order."""

    def __init__(self, options: Options) -> None:
        options.refuse_unknown(("topic", *KAFKA))
        self._kafka, self._errors = client_of("kafka", "kafka"), client_of("kafka.errors", "kafka")
        self._topic = options.text("topic", "{outbox}")
        self._settings = kafka_settings(options)
        self._producer: Any = None

    def send(self, messages: Sequence[Message]) -> None:
        """All are acknowledged by all replicas."""
        try:
            producer = self._connected()
            sent = [
                producer.send(
                    m.filled(self._topic), m.payload.encode(), key=m.key.encode(),
                    headers=[("dedup_key", m.dedup_key.encode()), ("event_type", m.event_type.encode())],
                )
                for m in messages
            ]  # fmt: skip
            producer.flush(KAFKA_SECONDS)
            for each in sent:
                each.get(timeout=KAFKA_SECONDS)
        except (self._errors.MessageSizeTooLargeError, self._errors.InvalidTopicError, ValueError) as error:
            # ValueError: the client itself finds that this is no name of a topic.
            raise Refused(f"Kafka refused: {type(error).__name__}") from error
        except self._errors.KafkaError as error:
            # What is still in its buffer is sent again by another: it must not come late.
            self._drop()
            raise Unavailable(f"Kafka does not answer: {type(error).__name__}") from error

    def close(self) -> None:
        """Close the connections."""
        self._drop()

    def _connected(self) -> Any:
        if self._producer is None:
            self._producer = self._kafka.KafkaProducer(
                acks="all", enable_idempotence=True, max_block_ms=KAFKA_SECONDS * 1000, **self._settings
            )
        return self._producer

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            # One that cannot be closed well is not needed any more, either.
            with contextlib.suppress(Exception):
                producer.close(timeout=0)


def _of_redis(error: Exception) -> Unavailable | Refused:
    """Whether Redis will not have a message, or nothing at the moment."""
    # Before this its client prints the command, and with it the message.
    said = str(error).rpartition("caused error: ")[2]
    if {cls.__name__ for cls in type(error).__mro__} & _NOT_NOW_ERRORS or said.partition(" ")[0] in _NOT_NOW:
        return Unavailable(f"Redis takes nothing now: {type(error).__name__}")
    return Refused(f"Redis refused: {said}")


def redis_settings(options: Options) -> dict[str, Any]:
    """What is not in the URL, for both ways."""
    given = {"password": options.maybe("password"), "db": options.maybe("database")}
    return {key: value for key, value in given.items() if value is not None}


def kafka_settings(options: Options) -> dict[str, Any]:
    """How brokers are reached, for both ways."""
    mechanism = options.maybe("sasl_mechanism")
    protocol = ("SASL_" if mechanism else "") + ("SSL" if options.flag("tls_enabled") else "PLAINTEXT")
    given = {
        "security_protocol": options.text("security_protocol", protocol),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": options.maybe("sasl_username"),
        "sasl_plain_password": options.maybe("sasl_password"),
    }
    known = {key: value for key, value in given.items() if value is not None}
    return {"bootstrap_servers": options.text("brokers").split(","), **known}
