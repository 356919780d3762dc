"""A renderer without Celery: the message of an occurrence names its schedule and its instant."""

from __future__ import annotations

import json
from collections.abc import Callable

from celery_wheel.engine.recurring.occurrence import Occurrence, header_of
from celery_wheel.recurring.definition import Definition
from celery_wheel.store.model import Message
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule
from tests.kit.holder import message


class Renderer:
    """Each call makes another task id: name, instant, number of the call."""

    def __init__(
        self,
        fault: Callable[[Schedule], None] = lambda _: None,
        decided: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.fault = fault
        self.rendered = 0
        self.decided: dict[str, tuple[int, int]] = {}  #: task id → the decision to make it was between these instants
        self._decided = decided

    def is_watched(self, schedule: Schedule) -> bool:
        return schedule.name.startswith("watched")

    def render(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        self.fault(schedule)
        instant_ms = occurrence.instant_ms
        self.rendered += 1
        headers = json.dumps({OCCURRENCE: header_of(schedule, definition, occurrence)}).encode()
        task_id = f"{schedule.name} {instant_ms} {self.rendered}"
        self.decided[task_id] = self._decided()
        return message(task_id=task_id, task="tasks.recurring", created_ms=instant_ms, headers=headers)
