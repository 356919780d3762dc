"""Schedules as users read them, also where SQL has written invalid values."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from celery_wheel.requests.schedules.definitions import history_view, schedule_view
from celery_wheel.store.ports.schedules import ScheduleDetail
from celery_wheel.store.schedule_model import Revision, Schedule

BROKEN = '{"task": "report", "overlap": "skip", "max_runtime_ms": 4611686018427387904, "jitter_ms": -1}'


@pytest.mark.parametrize("far_ms", [-(2**62), 2**63 - 1])
def test_a_value_outside_of_time_keeps_no_schedule_from_being_shown(far_ms: int) -> None:
    found = schedule_view(Schedule(1, "report", BROKEN, "api", 1, far_ms, 0, far_ms, since_ms=far_ms))
    at = datetime(1970 if far_ms < 0 else 9999, 1, 1, tzinfo=UTC)
    assert (found.next_at, found.last_at, found.since) == (at, at, at)
    assert (found.recurrence, found.policies) == (None, {"overlap": "skip"})


@pytest.mark.parametrize("before", ["no json", "{}", "[]", '{"name": "report", "next_ms": "soon"}'])
def test_a_revision_that_cannot_be_read_keeps_no_history_from_being_shown(before: str) -> None:
    change = Revision(1, 2, "report", "paused", "ann", "", 1_000, before)
    [found] = history_view(ScheduleDetail(None, [change], [], [])).revisions
    assert (found.number, found.actor) == (2, "ann")
    assert found.before is not None
    assert found.before.broken
    assert found.before.note.startswith("the revision has no schedule that can be read: ")
