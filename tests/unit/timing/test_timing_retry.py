"""Waits after failures, and their lines of log, however long the failures last."""

from __future__ import annotations

import logging
import random

import pytest

from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.timing.retry import LOG_INTERVAL_S

logger = logging.getLogger("test")


def test_the_wait_doubles_up_to_its_bound_and_begins_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 5.0)
    assert [backoff.failed() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.succeeded()
    assert backoff.failed() == 0.5


def test_ten_million_failures_are_as_one() -> None:
    backoff = Backoff(0.1, 2.0, random.Random(1))
    for _ in range(5):
        backoff.failed()
    assert {1 <= backoff.failed() <= 2 for _ in range(10_000_000)} == {True}
    backoff.succeeded()
    assert 0.05 <= backoff.failed() <= 0.1


@pytest.mark.parametrize(("first_s", "most_s"), [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)])
def test_a_backoff_needs_a_wait_and_a_bound(first_s: float, most_s: float) -> None:
    with pytest.raises(ValueError, match="first_s must be above 0"):
        Backoff(first_s, most_s)


def test_a_cause_is_logged_once_a_minute_with_a_count_of_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = RetryLog(logger, lambda: now_s[0])
    with caplog.at_level(logging.WARNING):
        for second in range(150):
            now_s[0] = float(second)
            log.write(logging.WARNING, "lost", "no answer (%s)", "refused", extra={"action": "lost"})
            if second == 70:
                log.write(logging.ERROR, "other", "another cause", extra={"action": "other"})
    assert [one.getMessage() for one in caplog.records] == [
        "no answer (refused)",
        "no answer (refused) (59 more times since it was last logged)",
        "another cause",
        "no answer (refused) (59 more times since it was last logged)",
    ]


def test_a_cause_that_is_over_is_forgotten() -> None:
    now_s = [0.0]
    log = RetryLog(logger, lambda: now_s[0])
    for number in range(1_000):
        now_s[0] += LOG_INTERVAL_S
        log.write(logging.DEBUG, f"cause {number}", "gone", extra={"action": "gone"})
    assert len(log._logged) == 1
