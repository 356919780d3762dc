"""The state of a message, from its position, its lane and its last outcome; see ``Detail``."""

from __future__ import annotations

from celery_wheel.store.model import ORIGIN, STOPPED, LaneState
from celery_wheel.store.ports.pages import Task


def state_of(task: Task, lane: LaneState | None, last_outcome: str | None) -> str:
    if task.lane == STOPPED:
        return last_outcome or "parked"
    if task.position <= (ORIGIN if lane is None else lane.offset):
        return "dispatched"
    return "in doubt" if lane is not None and task.position <= lane.watermark else "pending"
