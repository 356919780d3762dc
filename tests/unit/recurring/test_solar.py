"""Events of the sun: Celery's instants, polar night, and answers that do not depend on the question."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import celery
import pytest
from celery.schedules import solar

from celery_wheel.errors import PackageMissing, RecurrenceError
from celery_wheel.recurring import Recurrence, Solar
from celery_wheel.recurring.solar import EVENTS
from tests.unit.recurring.instants import EPOCH, ms, refuse_import

TROMSO = (69.65, 18.96)


class _App:
    timezone = UTC


@pytest.mark.parametrize("event", sorted(EVENTS))
@pytest.mark.parametrize("place", [(52.5, 13.4), (-33.9, 151.2), (0.0, -179.0), (40.7, -74.0), TROMSO])
def test_an_event_is_at_the_instant_of_celerys_own_schedule(event: str, place: tuple[float, float]) -> None:
    if celery.VERSION < (5, 7) and (place == TROMSO or "astronomical" in event):
        pytest.skip("Celery before 5.7 fails where the sun stays up or down, before 5.6 its astronomical dusk is wrong")
    random, spec = Random(f"{event}{place}"), Solar(event, *place)
    for _ in range(5):
        after_ms = ms("2026-01-01") + random.randrange(365 * 86_400) * 1_000
        found = spec.next_after(after_ms)
        assert found is not None
        now = EPOCH + timedelta(milliseconds=after_ms)
        theirs = solar(event, *place, app=_App(), nowfun=lambda now=now: now)
        expected = now + theirs.remaining_estimate(now)
        assert abs(EPOCH + timedelta(milliseconds=found) - expected) < timedelta(seconds=2)


def test_polar_night_is_skipped_to_the_next_sunrise() -> None:
    recurrence = Recurrence(Solar("sunrise", *TROMSO))
    last, first = recurrence.preview(ms("2026-11-26"), 2)
    assert datetime.fromtimestamp(last / 1_000, UTC).date() < datetime(2026, 11, 29, tzinfo=UTC).date()
    found = recurrence.preview(last, 60)
    pause_ms = max(later - earlier for earlier, later in pairwise([last, *found]))
    assert 45 * 86_400_000 < pause_ms < 55 * 86_400_000
    assert first > last


def test_sunsets_around_midnight_are_all_found() -> None:
    """Before the midnight sun a sunset comes after midnight: some dates have two, and others none."""
    found = Recurrence(Solar("sunset", 66.0, 18.96)).preview(ms("2026-05-20"), 80)
    pauses = [later - earlier for earlier, later in pairwise(found)]
    assert all(pause > 20 * 3_600_000 for pause in pauses)
    assert sorted(pauses)[40] < 25 * 3_600_000


@pytest.mark.parametrize("event", ["sunrise", "solar_noon", "dusk_civil"])
def test_an_event_does_not_depend_on_the_instant_of_the_question(event: str) -> None:
    spec, random = Solar(event, 60.2, 24.9), Random(event)
    first = spec.next_after(ms("2026-06-01"))
    assert first is not None
    second = spec.next_after(first)
    assert second is not None
    assert {spec.next_after(random.randrange(first, second)) for _ in range(50)} == {second}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("moonrise", 0, 0), "event must be one of dawn_astronomical"),
        (("sunrise", 91, 0), "latitude must be a number of degrees from -90 to 90, got 91"),
        (("sunrise", 0, -181), "longitude must be a number of degrees from -180 to 180"),
        (("sunrise", "52", 0), "latitude must be"),
        (("sunrise", float("nan"), 0), "latitude must be"),
    ],
)
def test_a_wrong_place_or_event_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RecurrenceError) as caught:
        Solar(*arguments)
    assert str(caught.value).startswith(message)


def test_a_place_without_the_event_is_refused() -> None:
    with pytest.raises(RecurrenceError, match=r"^spec must be a rule with an occurrence"):
        Recurrence(Solar("sunrise", 90, 0))


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_import(monkeypatch, "ephem")
    with pytest.raises(PackageMissing, match=r"pip install 'celery-wheel\[solar\]'"):
        Solar("sunrise", 1, 2)
