"""A refresh as a trace: a span per step inside one per stream table; sent only if the environment asks for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import runnel
from runnel import tracing
from runnel.errors import UserError
from runnel.model import spans
from tests.e2e.helpers import Stream, script, value


@pytest.fixture
def heard() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    yield exporter
    spans.listen(None)


def test_a_refresh_is_a_span_with_its_steps(
    db: psycopg.Connection, client: runnel.Client, stream: Stream, heard: InMemorySpanExporter, schema: str
) -> None:
    script(db, "CREATE TABLE t (k text, n text); INSERT INTO t VALUES ('a', '1')")
    stream("sums", "SELECT k, sum(n::int) AS total FROM t GROUP BY k")
    heard.clear()
    db.execute("INSERT INTO t VALUES ('a', '2')")
    client.refresh("sums")
    found = heard.get_finished_spans()
    (whole,) = [each for each in found if each.name == "refresh"]
    told = dict(whole.attributes or {})
    refresh_id = value(db, "SELECT max(refresh_id) FROM pgtrickle.get_refresh_history('sums')")
    assert told["runnel.stream_table"] == f"{schema}.sums" and told["runnel.refresh_id"] == refresh_id
    assert (told["runnel.rows_inserted"], told["runnel.rows_deleted"], told["runnel.action"]) == (1, 1, "DIFFERENTIAL")
    steps = [each for each in found if each.parent and each.parent.span_id == whole.context.span_id]
    assert {"read", "merge"} <= {each.name for each in found}
    assert steps and all(whole.start_time <= each.start_time <= each.end_time <= whole.end_time for each in steps)  # type: ignore[operator]
    # What failed is told by its kind: its words may quote a row.
    heard.clear()
    db.execute("INSERT INTO t VALUES ('a', 'a secret')")
    with pytest.raises(runnel.RunnelError):
        client.refresh("sums")
    failed = [each for each in heard.get_finished_spans() if not each.status.is_ok and each.name == "refresh"]
    assert failed and "a secret" not in "".join(each.to_json() for each in heard.get_finished_spans())


def test_spans_are_sent_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        stop = tracing.start()
        with spans.span("refresh", stream_table="public.totals"):
            pass
        stop()
        assert [path for path, _ in posts] == ["/v1/traces"] and b"public.totals" in posts[0][1]
        with spans.span("refresh", stream_table="public.later"):
            pass
        assert len(posts) == 1
    finally:
        server.shutdown()
        server.server_close()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(UserError, match="not supported"):
        tracing.start()
