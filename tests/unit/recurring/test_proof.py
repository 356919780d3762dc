"""As many seeds of the proof as fit in a few seconds; ``python -m tests.unit.recurring.proof`` runs the others."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from random import Random

import celery
import pytest

from celery_wheel.recurring import Crontab, Recurrence, RRule
from tests.unit.recurring.proof import (
    CELERY_DIFFERENCES,
    NAMED,
    ZONES,
    _from_dateutil,
    celery_runs,
    prove_crontab,
    prove_one,
    to_ms,
    walk,
)
from tests.unit.recurring.random_specs import CrontabText

GAP = datetime(2026, 3, 29, 1, tzinfo=UTC)


@pytest.mark.parametrize("turn", range(4))
def test_random_specs_agree_with_the_oracles(turn: int) -> None:
    seed = Random().randrange(1_000_000)
    zone, counts = Random(seed).choice(ZONES), Counter[str]()
    found = list(prove_one(Random(f"unit/{seed}"), zone, turn, counts))
    if celery.VERSION < (5, 5):  # whose crontab misses runs and invents some where the clocks change
        found = [difference for difference in found if not difference.startswith("Celery's ")]
    assert [difference for difference in found if difference not in NAMED] == [], seed
    assert counts["windows"] >= 1


def test_celery_runs_only_the_first_time_of_a_gap() -> None:
    """The example of ``CELERY_DIFFERENCES``: it holds for the installed Celery."""
    assert list(CELERY_DIFFERENCES) == ["only the first of a gap"]
    seen = walk("Europe/Berlin", GAP)
    runs = celery_runs(("0,20,40", "2", "*", "*", "*"), "Europe/Berlin", seen.start, seen.end)
    ours = list(Recurrence(Crontab("0,20,40", "2"), "Europe/Berlin").between(to_ms(seen.start), to_ms(seen.end)))
    assert len(ours) - len(runs) == 2
    assert set(ours) - set(runs) == {to_ms(GAP.replace(minute=minute)) for minute in (20, 40)}


def test_celery_passes_over_the_times_before_the_first_moved_one() -> None:
    """A gap of half an hour: 02:24 is moved to 02:54, and 02:31 and 02:48, which exist, never run."""
    around = datetime(2007, 10, 27, 18, tzinfo=UTC)
    text = CrontabText(
        ("24,14-49/17", "*", "*", "*", "*"),
        frozenset({24, 14, 31, 48}),
        frozenset(range(24)),
        frozenset(range(7)),
        frozenset(range(1, 32)),
        frozenset(range(1, 13)),
    )
    assert set(prove_crontab(text, "Australia/Lord_Howe", around, "shift", "first")) == {"only the first of a gap"}


@pytest.mark.parametrize(("weeks", "named"), [("5,12,52", True), ("5,12", False)])
def test_dateutil_takes_the_first_of_january_2011_for_a_day_of_week_53(weeks: str, named: bool) -> None:
    text = f"DTSTART:20100929T225600\nRRULE:FREQ=YEARLY;BYWEEKNO={weeks};BYHOUR=4"
    assert date(2011, 1, 1).isocalendar() == (2010, 52, 6)
    found = set(
        _from_dateutil(Random(0), text, RRule(text), datetime(2010, 9, 29, 22, 56, tzinfo=UTC).replace(tzinfo=None))
    )
    assert found == ({"last week of the year before"} if named else set())


@pytest.mark.parametrize(
    ("start", "rule"),
    [
        ("20210704T052400", "BYWEEKNO=53;BYMINUTE=51"),  # the lists end at different days
        ("20370605T025400", "WKST=FR;BYWEEKNO=52;BYSETPOS=1,-4,6"),  # 1 January 2042 is a day of week 52: the first
    ],
)
def test_days_of_january_that_dateutil_counts_wrongly_have_a_name(start: str, rule: str) -> None:
    text = f"DTSTART:{start}\nRRULE:FREQ=YEARLY;{rule}"
    found = list(_from_dateutil(Random(0), text, RRule(text), datetime.fromisoformat(start)))
    assert found == ["last week of the year before"]
