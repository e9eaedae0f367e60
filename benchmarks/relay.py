"""How many messages a second does the relay deliver, and how soon does one arrive?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from psycopg.types.json import Jsonb

from benchmarks.report import Answer, Grid
from benchmarks.stack import Bench
from benchmarks.timing import median, ms, percentile
from tests.relay.brokers import find, kafka_jars, kafka_server, nats_server, redis_server

BATCH = 500
PUBLISH = """
SELECT tide.outbox_publish('bench', jsonb_build_object('n', i, 'text', repeat('x', 200))) FROM generate_series(1, %s) i
"""
DELIVERED = "SELECT delivered_count FROM tide.relay_pipeline_lag WHERE pipeline_id = 'bench'"


def run(bench: Bench) -> Answer:
    """One pipeline at a time: many messages at once, then single ones."""
    count, singles = (2_000, 10) if bench.quick else (50_000, 100)
    bench.start_engine()
    bench.conn.execute("SELECT tide.inbox_create('bench', p_schema := 'public')")
    rows = []
    with _receiver() as url, TemporaryDirectory() as folder, ExitStack() as running:
        sinks: dict[str, dict[str, Any]] = {
            "ducklake": {"table": "relayed"},
            "file": {"path": str(bench.lake / "relayed")},
            "pg-inbox": {"postgres_url": bench.dsn, "inbox": "bench", "schema": "public"},
            "webhook": {"url": url, "allow_http": True, "ssrf_protection": False},
            **_brokers(Path(folder), running),
        }
        for sink, config in sinks.items():
            rows.append([sink, *_measure(bench, sink, config, count, singles)])
    return Answer(
        question="Messages through the relay",
        setup=(
            f"{count:,} messages of 250 bytes, published in one transaction, then {singles} single ones; one pipeline "
            f"with batches of {BATCH}, in `runnel up`. Sinks are on the same machine; a webhook is one request per "
            "message, and NATS acknowledges each before the next. "
            f"{_missing(sinks)}"
        ).strip(),
        grid=Grid(("sink", "messages per s", "one message, p50", "p95"), rows),
    )


def _brokers(folder: Path, running: ExitStack) -> dict[str, dict[str, Any]]:
    """The brokers that are on this machine, started: those of Debian's packages, and Kafka's jars."""
    sinks: dict[str, dict[str, Any]] = {}
    for name in ("redis", "nats", "kafka"):
        (folder / name).mkdir()
    if find("redis-server"):
        redis = running.enter_context(redis_server(folder / "redis"))
        sinks["redis"] = {"url": redis.url, "stream": "bench"}
    if find("nats-server"):
        nats = running.enter_context(nats_server(folder / "nats"))
        sinks["nats"] = {"url": nats.url, "subject": "bench", "stream": "BENCH"}
    if kafka_jars().is_dir():
        kafka = running.enter_context(kafka_server(folder / "kafka"))
        sinks["kafka"] = {"brokers": kafka.url, "topic": "bench"}
    return sinks


def _missing(sinks: dict[str, Any]) -> str:
    absent = [name for name in ("redis", "nats", "kafka") if name not in sinks]
    return f"Not on this machine: {', '.join(absent)} (`make test-relay` fetches them)." if absent else ""


def _measure(bench: Bench, sink: str, config: dict[str, Any], count: int, singles: int) -> list[str]:
    bench.conn.execute("SELECT tide.outbox_create('bench')")
    wanted = {"name": "bench", "outbox": "bench", "sink_type": sink, "config": config, "batch_size": BATCH}
    bench.conn.execute("SELECT tide.relay_set_outbox_v2(%s)", (Jsonb(wanted),))
    _deliver(bench, 1, 1)
    began = time.perf_counter()
    _deliver(bench, count, 1 + count)
    rate = count / (time.perf_counter() - began)
    waited = []
    for number in range(singles):
        began = time.perf_counter()
        _deliver(bench, 1, 2 + count + number)
        waited.append((time.perf_counter() - began) * 1000)
    bench.conn.execute("SELECT tide.relay_delete('bench'), tide.outbox_drop('bench')")
    return [f"{rate:,.0f}", ms(median(waited)), ms(percentile(waited, 0.95))]


def _deliver(bench: Bench, count: int, until: int) -> None:
    """Publish, and wait until the sink has everything."""
    bench.conn.execute(PUBLISH, (count,))
    while (bench.conn.execute(DELIVERED).fetchone() or (0,))[0] < until:
        time.sleep(0.002)


@contextmanager
def _receiver() -> Iterator[str]:
    """A web server that takes everything."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # noqa: N802
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
