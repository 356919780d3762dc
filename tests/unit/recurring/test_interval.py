"""Intervals and lists of instants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Instants, Interval, Recurrence
from tests.unit.recurring.instants import ms, shown


@given(st.integers(1, 10**10), st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**13))
def test_the_next_point_of_the_grid_is_strictly_after(every_ms: int, anchor_ms: int, at_ms: int) -> None:
    found = Interval(every_ms, anchor_ms).next_after(at_ms)
    assert at_ms < found <= at_ms + every_ms
    assert (found - anchor_ms) % every_ms == 0


def test_a_day_of_an_interval_has_24_hours_when_the_clocks_change() -> None:
    recurrence = Recurrence(Interval(86_400_000, ms("2026-03-28T09:00+01:00")), "Europe/Berlin")
    found = recurrence.preview(ms("2026-03-28"), 2)
    assert shown(found, "Europe/Berlin") == ["03-28 09:00+0100", "03-29 10:00+0200"]


def test_instants_are_sorted_and_without_repetition() -> None:
    spec = Instants((30, 10, 20, 10))
    assert spec == Instants((10, 20, 30))
    assert [spec.next_after(at) for at in (0, 10, 29, 30)] == [10, 20, 30, None]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(0), "every_ms must be at "),
        (lambda: Interval(-5), "every_ms must be"),
        (lambda: Interval(1.5), "every_ms must be"),  # type: ignore[arg-type]
        (lambda: Interval(1, None), "anchor_ms must be"),  # type: ignore[arg-type]
        (lambda: Instants(()), "at_ms must be a list of 1 to 10,000 instants, got '0 of them'"),
        (lambda: Instants(tuple(range(10_001))), "at_ms must be a list of 1 to 10,000 instants, got '10,001 of them'"),
        (lambda: Instants((1, -1)), "at_ms[1] must be a whole number of at least 0"),
        (lambda: Instants("12"), "at_ms must be a list of instants"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_definition_is_refused(make: Any, message: str) -> None:
    with pytest.raises(RecurrenceError) as caught:
        make()
    assert str(caught.value).startswith(message)
