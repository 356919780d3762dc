"""The apps of ``tests.unit.producer``, and occurrences of schedules for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import Schedule
from tests.unit.producer.conftest import app, broker, make_app

__all__ = ["app", "broker", "make_app"]

AT_MS = 1_793_664_000_000
UUID = "6f1c2d3e-0000-4000-8000-000000000001"


class Rendering:
    """Renders occurrences of one schedule."""

    def __init__(self, app: Any, apply_entry: Any = None, **definition: Any) -> None:
        spec = {"kind": "interval", "every_ms": 1_000}
        document = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "proj.touch", **definition}
        text = to_text(document)
        self.schedule = Schedule(1793, "report", text, "api", 1, AT_MS)
        self.definition = read_definition(text)
        self.renderer = ScheduleRenderer(app, 8 * 2**20, QueuedMessageReader().decode, apply_entry)

    def __call__(self, instant_ms: int = AT_MS, due_ms: int | None = None, id_: str = UUID) -> Message:
        occurrence = Occurrence(0, instant_ms, instant_ms if due_ms is None else due_ms, AT_MS - 1_000, id_)
        return self.renderer.render(self.schedule, self.definition, occurrence)

    def all_three(self) -> list[Message]:
        """Return two samples, and the message by the template."""
        return [self(id_=UUID[:-1] + str(n)) for n in range(3)]


def body(message: Message) -> Any:
    return json.loads(message.body)


def headers(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(message.headers)
    return found


@pytest.fixture
def rendering(app: Any) -> Callable[..., Rendering]:
    return lambda *args, **definition: Rendering(app, *args, **definition)
