"""Fields of cron mean here what they mean to cron itself: croniter, an implementation of others, agrees."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from croniter import croniter

from celery_wheel.operations.schedule_import.crontab import NICKNAMES, WEEKDAYS, numbers, spec_of
from celery_wheel.operations.schedule_import.foreign import NotImportable
from celery_wheel.recurring import Crontab, Recurrence, RRule

START = datetime(2027, 2, 20, 11, 30, tzinfo=UTC)


def previewed(fields: str, count: int = 30, *, either_day: bool = True) -> list[datetime]:
    found = Recurrence(spec_of(fields, either_day=either_day)).preview(int(START.timestamp() * 1_000), count)
    return [datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in found]


def expected(fields: str, count: int = 30, *, either_day: bool = True) -> list[datetime]:
    oracle = croniter(NICKNAMES.get(fields, fields), START, day_or=either_day, implement_cron_bug=True)
    return [oracle.get_next(datetime) for _ in range(count)]


@pytest.mark.parametrize(
    "fields",
    [
        *("* * * * *", "*/7 3-5 * * *", "0 0 * * 0", "0 0 * * 7", "0 0 * * sun", "30 2 * jan,JUL *"),
        *("0 12 1 * *", "0 0 13 * 5", "5,10 */6 1-7 * mon-fri", "0 0 */2 * 1", "0 0 29 2 *", "0 0 31 * *"),
        *("0 8-18/2 * * 1-5", "0 0 * * 5-7", "0 0 1,15 */3 wed", *NICKNAMES),
    ],
)
def test_the_instants_are_those_of_cron(fields: str) -> None:
    assert previewed(fields) == expected(fields)


def test_random_fields_have_the_instants_of_cron() -> None:
    chance = random.Random(7)

    def field(least: int, most: int) -> str:
        low = chance.randint(least, most)
        high = chance.randint(low, most)
        if low == high:  # croniter reads 23-23/5 as 0-23/5
            return str(low)
        return chance.choice(["*", str(low), f"{low}-{high}", f"{low}-{high}/{chance.randint(1, 5)}", f"{low},{high}"])

    for _ in range(300):
        fields = " ".join(field(*span) for span in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6)))
        for either_day in (True, False):
            assert previewed(fields, 8, either_day=either_day) == expected(fields, 8, either_day=either_day), fields


def test_two_kinds_of_days_are_two_rules_only_where_either_is_enough() -> None:
    assert isinstance(spec_of("0 0 13 * 5", either_day=True), RRule)
    assert isinstance(spec_of("0 0 13 * 5", either_day=False), Crontab)
    assert isinstance(spec_of("0 0 */2 * 5", either_day=True), Crontab)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("61", "from 0 to 59"),
        ("5-1", "from 0 to 59"),
        ("*/0", "from 0 to 59"),
        ("H", "an unknown name"),
        ("1~9", "only its"),
        ("", "only"),
        ("²", "an unknown name"),
        ("٣", "an unknown name"),
        ("1/²", "only its"),
        ("9" * 5_000, "an unknown name"),
    ],
)
def test_a_field_that_means_nothing_here_is_refused(field: str, reason: str) -> None:
    with pytest.raises(NotImportable, match=reason):
        numbers(field, 0, 59)


def test_names_of_days_are_numbers() -> None:
    assert numbers("Monday-wed,SAT", 0, 7, WEEKDAYS) == [1, 2, 3, 6]


@pytest.mark.parametrize("fields", ["* * * *", "0 0 * * * *", "@reboot", ""])
def test_other_numbers_of_fields_are_refused(fields: str) -> None:
    with pytest.raises(NotImportable, match="five fields"):
        spec_of(fields, either_day=True)
