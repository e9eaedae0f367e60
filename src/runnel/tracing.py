"""OpenTelemetry: spans of refreshes, sent where the usual OTEL_ variables say. Without them nothing is loaded.

A refresh is a span, its steps are spans inside it; the transaction of several stream tables is one around them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runnel.errors import UserError
from runnel.model import spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class _Told:
    span: Any

    def tell(self, facts: spans.Facts) -> None:
        self.span.set_attributes({f"runnel.{name}": value for name, value in facts.items()})


def wanted(environment: Mapping[str, str]) -> str | None:
    """The exporter that the environment asks for, if any.

    >>> wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"}), wanted({"OTEL_TRACES_EXPORTER": "console"})
    ('otlp', 'console')
    >>> wanted({}), wanted({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://here:4318"})
    (None, None)
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    exporter = environment.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(environment.get, ENDPOINTS)) else "none")
    return None if exporter == "none" else exporter


def start() -> Callable[[], None]:
    """Send spans if the environment asks for it; what ends that, after all have been sent."""
    exporter = wanted(os.environ)
    if exporter is None:
        return lambda: None
    try:
        provider = _provider(exporter)
    except ImportError:
        raise UserError(
            "Traces are asked for (OTEL_..), and OpenTelemetry is not installed.", hint="pip install 'runnel[otel]'"
        ) from None
    use(provider)

    def stop() -> None:
        spans.listen(None)
        provider.shutdown()

    return stop


def use(provider: TracerProvider) -> None:
    """Hand spans to a provider."""
    tracer = provider.get_tracer("runnel")

    @contextmanager
    def opened(name: str, facts: spans.Facts) -> Iterator[spans.Span]:
        # What an exception says may quote a row: its kind is told, not its words.
        with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            told = _Told(span)
            told.tell(facts)
            try:
                yield told
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(_failed())
                raise

    spans.listen(opened)


def _failed() -> Any:
    from opentelemetry.trace import Status, StatusCode

    return Status(StatusCode.ERROR)


def _provider(exporter: str) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    provider = TracerProvider(resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "runnel")}))
    if exporter == "console":
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
    elif exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    else:
        raise UserError(f"OTEL_TRACES_EXPORTER={exporter} is not supported.", hint="Use otlp, console or none.")
    return provider
