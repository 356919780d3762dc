"""OpenTelemetry in the processes of the test project: each span is a line of the file ``spans``.

A process gets it by the setting ``imports``. Workers and producers are instrumented by OpenTelemetry's own package.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tests.kit.project import write_line


class FileExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            context = span.get_span_context()
            assert context is not None
            line = {
                "name": span.name,
                "trace": context.trace_id,
                "id": context.span_id,
                "parent": span.parent and span.parent.span_id,
                "links": [link.context.span_id for link in span.links],
                "started_ns": span.start_time,
                "ended_ns": span.end_time,
            }
            write_line(_folder / "spans", line)
        return SpanExportResult.SUCCESS


_folder = Path(json.loads(os.environ["TEST_PROJECT"])["folder"])
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(FileExporter()))
trace.set_tracer_provider(_provider)
CeleryInstrumentor().instrument(use_span_links=True)
