"""Ingest waits for the next schedule, and where the broker does not tell of messages, for the next poll at most."""

from __future__ import annotations

from unittest import mock

import pytest

from celery_wheel.engine.round import Round
from celery_wheel.engine.runner import AT_ONCE, Runner
from celery_wheel.engine.state.agenda import EARLY_MS, LOOK_MS, NEVER, Agenda
from tests.unit.engine.recurring.conftest import ScheduleRig


@pytest.mark.parametrize("schedule_ms", [NEVER, 0, 7, 900])
@pytest.mark.parametrize("listens", [True, False])
def test_ingest_waits_for_the_next_schedule_or_the_poll(rig: ScheduleRig, schedule_ms: int, listens: bool) -> None:
    rig.run("tend", "ingest")
    [jobs] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    if listens:
        steps = rig.engine.listen()
        assert next(steps) == "listens"
    with mock.patch.object(rig.engine, "ingest_wait_ms", return_value=schedule_ms):
        assert jobs._after_ingest(Round.BUSY, 1.0) == AT_ONCE
        wait = jobs._after_ingest(Round.IDLE, 0.0)
    assert wait.least_s == 0
    assert wait.most_s == (schedule_ms if listens else min(50, schedule_ms)) / 1_000


def test_an_agenda_is_read_again_after_a_second_whatever_due_time_does() -> None:
    agenda = Agenda()
    assert agenda.is_time(0, 0)
    agenda.read(None, 100, 0)
    assert agenda.wait_ms(10**9, 100) == LOOK_MS
    assert not agenda.is_time(10**12, 100 + LOOK_MS - EARLY_MS - 1)
    assert agenda.is_time(0, 100 + LOOK_MS - EARLY_MS)
    agenda.read(5_000, 200, 0)
    assert agenda.wait_ms(4_300, 200) == 700
    assert agenda.is_time(5_000, 200)
    agenda.read(None, 200, 0)
    agenda.reopen()
    assert agenda.is_time(0, 200)
