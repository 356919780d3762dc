"""The spans of a scheduler: one for each publish, linked to the traces of its messages.

A message keeps the context of its request to its worker. A span that waited for the eta would be open for 30 days. Only
messages whose trace is sampled are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from celery_wheel.store.model import Row
from celery_wheel.values import __version__, parts

#: Links of a span, as OpenTelemetry's SDK bounds them; a publish of more messages has several spans.
MAX_LINKS = 128

#: The header of a sampled trace, as the W3C's Trace Context defines it.
_SAMPLED = re.compile(rb'"traceparent": ?"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f][13579bdf]"')


class DispatchSpans:
    """Makes spans by the project's tracer provider, or by another."""

    def __init__(self, shard: int, provider: Any = None) -> None:
        from opentelemetry.trace import get_tracer

        self._shard = shard
        self._tracer = get_tracer("celery_wheel", __version__, provider)

    def __call__(self, rows: Sequence[Row], began_ms: int, ended_ms: int) -> None:
        """Make the spans of a publish; none where no message of it has a sampled trace."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        links = list(self._links(rows, began_ms))
        attributes: dict[str, Any] = {
            "messaging.system": "celery",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(rows),
            "wheel.shard": self._shard,
        }
        for part in parts(links, MAX_LINKS):
            span = self._tracer.start_span(
                "celery_wheel publish",
                context=Context(),  # a trace of its own
                kind=SpanKind.PRODUCER,
                links=part,
                attributes=attributes,
                start_time=began_ms * 1_000_000,
            )
            span.end(ended_ms * 1_000_000)

    def _links(self, rows: Sequence[Row], began_ms: int) -> Iterator[Any]:
        from opentelemetry.trace import Link, SpanContext, TraceFlags

        for row in rows:
            try:
                headers = row.parts().headers
                found = _SAMPLED.search(headers)
                task_id = "" if found is None else str(json.loads(headers).get("id", ""))
            except ValueError:  # damaged bytes, which the publish has rejected
                continue
            if found is None:
                continue
            context = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(1))
            attributes: dict[str, Any] = {
                "messaging.message.id": task_id,
                "messaging.destination.name": row.route.target,
                "celery.task_name": row.route.task,
                "wheel.eta_ms": row.eta_ms,
                "wheel.late_ms": began_ms - row.eta_ms,
            }
            yield Link(context, attributes)
