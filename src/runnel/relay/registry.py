"""The kinds of sinks and sources there are. A new one is a class and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runnel.catalog.sessions import connect
from runnel.errors import UserError
from runnel.lake.attached import load_lakes
from runnel.lake.format.model import Lake
from runnel.relay.config import Options, Pipeline
from runnel.relay.port import Sink, Source, TransactionalSink
from runnel.relay.sinks.brokers import KafkaSink, NatsSink, RedisSink
from runnel.relay.sinks.dry import DrySink
from runnel.relay.sinks.ducklake import DuckLakeSink
from runnel.relay.sinks.file import FileSink
from runnel.relay.sinks.pg_inbox import PgInboxSink
from runnel.relay.sinks.webhook import WebhookSink
from runnel.relay.sources import KafkaSource, NatsSource, RedisSource

Make = Callable[[Options, str], Sink | TransactionalSink]

SINKS: Mapping[str, Make] = {
    "ducklake": DuckLakeSink,
    "file": lambda options, dsn: FileSink(options, lambda: _lakes(dsn)),
    "kafka": lambda options, _: KafkaSink(options),
    "nats": lambda options, _: NatsSink(options),
    "pg-inbox": lambda options, _: PgInboxSink(options),
    "redis": lambda options, _: RedisSink(options),
    "webhook": lambda options, _: WebhookSink(options),
}
SOURCES: Mapping[str, Callable[[Options], Source]] = {
    "kafka": KafkaSource,
    "nats": NatsSource,
    "redis": RedisSource,
}


def open_sink(pipeline: Pipeline, dsn: str) -> Sink | TransactionalSink:
    """Its sink, which finds mistakes in its options; with `dry_run` nothing is sent to it."""
    options = Options(pipeline)
    sink = SINKS[pipeline.kind](options, dsn)
    if not options.flag("dry_run"):
        return sink
    sink.close()
    return DrySink(pipeline)


def open_source(pipeline: Pipeline) -> Source:
    if pipeline.kind not in SOURCES:
        raise UserError(
            f"pipeline {pipeline.name}: there is no source {pipeline.kind} yet",
            hint=f"Known are: {', '.join(SOURCES)}.",
            sqlstate="0A000",
        )
    return SOURCES[pipeline.kind](Options(pipeline))


def _lakes(dsn: str) -> list[Lake]:
    with connect(dsn, "runnel relay") as conn:
        return list(load_lakes(conn).values())
