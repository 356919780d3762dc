"""The ingest thread waits for the next poll, or for the next schedule where that is sooner."""

from __future__ import annotations

from unittest import mock

import pytest

from celery_wheel.engine.round import Round
from celery_wheel.engine.runner import Runner
from celery_wheel.engine.state.agenda import LOOK_MS, NEVER, Agenda
from tests.unit.engine.recurring.conftest import ScheduleRig


@pytest.mark.parametrize(("schedule_ms", "waits_s"), [(NEVER, 0.05), (0, 0), (7, 0.007), (900, 0.05)])
def test_ingest_waits_for_the_poll_or_the_next_schedule(rig: ScheduleRig, schedule_ms: int, waits_s: float) -> None:
    rig.run("tend")
    runner = Runner(rig.engine, lease_ms=2_000, poll_ms=50)
    with (
        mock.patch.object(rig.engine, "ingest_wait_ms", return_value=schedule_ms),
        mock.patch.object(rig.engine, "has_arrivals", side_effect=[False, False, True]) as has_arrivals,
        mock.patch.object(rig.engine.arrived, "wait") as wait,
    ):
        runner._await_arrivals(50, Round.BUSY, 0.0)
        wait.assert_not_called()
        runner._await_arrivals(50, Round.IDLE, 0.0)
        asked = 0 if schedule_ms <= 50 else 3
        assert has_arrivals.call_count == asked
        assert [call.args for call in wait.call_args_list] == [(waits_s,)] * max(1, asked)


def test_an_agenda_is_read_again_after_a_second_whatever_due_time_does() -> None:
    agenda = Agenda()
    assert agenda.is_time(0, 0)
    agenda.read(None, 100, 0)
    assert agenda.wait_ms(10**9, 100) == LOOK_MS
    assert not agenda.is_time(10**12, 100 + LOOK_MS - 1)
    assert agenda.is_time(0, 100 + LOOK_MS)
    agenda.read(5_000, 200, 0)
    assert agenda.wait_ms(4_300, 200) == 700
    assert agenda.is_time(5_000, 200)
    agenda.read(None, 200, 0)
    agenda.reopen()
    assert agenda.is_time(0, 200)
