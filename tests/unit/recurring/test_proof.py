"""As many seeds of the proof as fit in a few seconds; ``python -m tests.unit.recurring.proof`` runs the others."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from random import Random

import pytest

from celery_wheel.recurring import Crontab, Recurrence
from tests.unit.recurring.oracle import to_ms, walk
from tests.unit.recurring.proof import CELERY_DIFFERENCES, NAMED, ZONES, celery_runs, prove_one

GAP = datetime(2026, 3, 29, 1, tzinfo=UTC)


@pytest.mark.parametrize("turn", range(4))
def test_random_specs_agree_with_the_oracles(turn: int) -> None:
    seed = Random().randrange(1_000_000)
    zone, counts = Random(seed).choice(ZONES), Counter[str]()
    found = list(prove_one(Random(f"unit/{seed}"), zone, turn, counts))
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
