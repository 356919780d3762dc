"""A publish has a span, which is linked to the traces of its messages."""

from __future__ import annotations

import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_wheel.scheduler.spans import MAX_LINKS, DispatchSpans
from celery_wheel.store.model import Row
from tests.kit.holder import message

NOW = 1_800_000_000_000
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def row(number: int, flags: str | None = "01", **parts: object) -> Row:
    headers: dict[str, object] = {"lang": "py", "id": f"t{number}"}
    if flags is not None:
        headers["traceparent"] = f"00-{TRACE}-{SPAN}-{flags}"
    return Row.of(message(headers=json.dumps(headers).encode(), eta_ms=NOW - 40, **parts), number, 0, NOW, number)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> DispatchSpans:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return DispatchSpans(3, provider)


def test_a_span_links_the_sampled_traces_of_its_messages_and_is_a_trace_of_its_own(
    spans: DispatchSpans, exporter: InMemorySpanExporter
) -> None:
    spans([row(1), row(2, "00"), row(3, None)], NOW, NOW + 5)
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert (span.start_time, span.end_time) == (NOW * 10**6, (NOW + 5) * 10**6)
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    [link] = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id
    assert dict(link.attributes or {}) == {
        "messaging.message.id": "t1",
        "messaging.destination.name": "celery",
        "celery.task_name": "app.remind",
        "wheel.eta_ms": NOW - 40,
        "wheel.late_ms": 40,
    }


def test_messages_without_a_sampled_trace_have_no_span(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    damaged = row(4)
    damaged.packed = b"?"
    # A traceparent in the arguments of a task is no context.
    body = row(5, None, body=f'"traceparent": "00-{TRACE}-{SPAN}-01"'.encode())
    spans([row(2, "00"), row(3, None), damaged, body], NOW, NOW)
    assert exporter.get_finished_spans() == ()


def test_a_large_publish_has_several_spans(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    spans([row(n) for n in range(MAX_LINKS + 1)], NOW, NOW)
    assert [len(span.links) for span in exporter.get_finished_spans()] == [MAX_LINKS, 1]
