"""Recurring schedules in virtual time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.errors import RecurrenceError, WheelError
from celery_wheel.recurring import Crontab
from celery_wheel.testing import VirtualWheel

BEGIN = datetime(2030, 3, 30, tzinfo=UTC)


@pytest.fixture
def app() -> Any:
    app: Any = Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)

    @app.task(name="app.report", bind=True, shared=False)
    def report(self: Any, fail: bool = False) -> Any:
        if fail and not self.request.retries:
            raise self.retry(countdown=90)
        found = self.request.wheel
        return found and (found.schedule, found.scheduled_for, found.previous, found.attempt)

    return app


def test_a_schedule_runs_at_each_of_its_instants(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        wheel.freeze()
        app.wheel.schedules.create("nightly", Crontab("0", "3"), "app.report")
        app.tasks["app.report"].apply_async(countdown=3_600)
        ran = wheel.advance(days=3)
        hours = [round((one.at - BEGIN) / timedelta(hours=1), 3) for one in ran]
        assert hours == [1, 2, 25, 49], "on the second day clocks go forward"
        first, second = ran[1].at, ran[2].at
        found = [one.result for one in ran[:3]]
        assert found == [None, ("nightly", first, None, 1), ("nightly", second, first, 1)]
        app.wheel.schedules.pause("nightly")
        assert wheel.advance(days=2) == []
        assert app.wheel.schedules.resume("nightly")
        assert len(wheel.advance(days=1)) == 1
        history = app.wheel.schedules.history("nightly")
        assert [(one.count, one.reason) for one in history.skips] == [(2, "paused")]
        with pytest.raises(WheelError, match="10 tasks ran and there are more"):
            wheel.run_all(limit=10)


def test_a_trigger_and_a_backfill_run_at_once(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        schedules = app.wheel.schedules
        schedules.create("nightly", Crontab("0", "3"), "app.report", overlap="skip")
        triggered = schedules.trigger("nightly")
        [ran] = wheel.run_due()
        assert triggered.task_ids == (ran.id,)
        first, last = BEGIN - timedelta(days=2), BEGIN
        answer = schedules.backfill("nightly", first, last, overlap="allow")
        ran_ = wheel.run_due()
        assert [one.id for one in ran_] == list(answer.task_ids)
        assert [one.result[1] for one in ran_] == [BEGIN - timedelta(hours=46), BEGIN - timedelta(hours=22)]
        with pytest.raises(RecurrenceError, match="every needs the overlap \"allow\", and this backfill has 'skip'"):
            schedules.backfill("nightly", first, last, every=60)
        assert schedules.backfill("nightly", first, last, overlap="allow", every=timedelta(minutes=10)).task_ids
        assert [one.at - BEGIN for one in wheel.advance(minutes=30)] == pytest.approx(
            [timedelta(0), timedelta(minutes=10)], abs=timedelta(seconds=30)
        )


def test_an_instant_during_a_run_is_skipped_until_the_run_has_ended(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(BEGIN)
        schedules = app.wheel.schedules
        schedules.create("minutely", 60, "app.report", (True,), overlap="skip")
        ran = wheel.advance(minutes=4, seconds=30)
        found = [(one.state, (one.at - BEGIN).total_seconds()) for one in ran]
        assert found == [("RETRY", 60.0), ("SUCCESS", 150.0), ("RETRY", 180.0), ("SUCCESS", 270.0)]
        assert ran[1].result[3] == 2
        assert {one.reason for one in schedules.history("minutely").skips} == {"overlapped"}
