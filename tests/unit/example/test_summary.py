"""The summary of a replay: lost, duplicated and early reminders, and lateness."""

import pytest
from flights.summary import percentile, summarise

GRACE = 1_000


def test_reminders_that_ran_once_and_slightly_late_are_faultless() -> None:
    summary = summarise({"a": 100, "b": 200}, [("a", 103), ("b", 210)], now_ms=5_000, grace_ms=GRACE, dispatched=2)
    assert summary.as_dict() == {
        "scheduled": 2,
        "waiting": 0,
        "dispatched": 2,
        "executed": 2,
        "lost": 0,
        "duplicated": 0,
        "early": 0,
        "lateness_p50_ms": 3,
        "lateness_p99_ms": 10,
        "lateness_max_ms": 10,
    }
    assert summary.faultless


@pytest.mark.parametrize(("now", "waiting", "lost"), [(0, 1, 0), (1_199, 1, 0), (1_200, 0, 1)])
def test_a_reminder_that_did_not_run_is_lost_after_the_grace(now: int, waiting: int, lost: int) -> None:
    summary = summarise({"b": 200}, [], now_ms=now, grace_ms=GRACE)
    assert (summary.waiting, summary.lost, summary.executed) == (waiting, lost, 0)
    assert summary.faultless is (lost == 0)
    assert summary.lateness_max_ms is None


def test_each_further_run_of_a_task_is_a_duplicate_and_the_first_counts() -> None:
    summary = summarise({"a": 100}, [("a", 900), ("a", 101), ("a", 500)], now_ms=5_000, grace_ms=GRACE)
    assert (summary.executed, summary.duplicated, summary.lateness_max_ms) == (1, 2, 1)
    assert not summary.faultless


def test_a_run_in_the_due_millisecond_is_not_early() -> None:
    assert summarise({"a": 100}, [("a", 100)], now_ms=5_000, grace_ms=GRACE).early == 0
    summary = summarise({"a": 100}, [("a", 99)], now_ms=5_000, grace_ms=GRACE)
    assert (summary.early, summary.faultless) == (1, False)


def test_the_lines_for_people_name_every_figure() -> None:
    summary = summarise({"a": 100}, [("a", 1_350)], now_ms=5_000, grace_ms=GRACE, dispatched=None)
    assert [" ".join(line.split()) for line in summary.lines()] == [
        "scheduled 1",
        "waiting 0",
        "dispatched -",
        "executed 1",
        "lost 0",
        "duplicated 0",
        "early 0",
        "lateness p50 1,250 ms",
        "lateness p99 1,250 ms",
        "lateness max 1,250 ms",
    ]


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(0, 50, None), (1, 99, 1), (2, 50, 1), (100, 99, 99), (101, 99, 100)]
)
def test_a_percentile_is_the_nearest_rank(count: int, percent: int, expected: int | None) -> None:
    assert percentile(range(1, count + 1), percent) == expected
