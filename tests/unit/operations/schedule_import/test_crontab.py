"""Cron's fields mean here what croniter, an implementation of others, makes of them; and a crontab's lines."""

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from croniter import croniter

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions
from celery_wheel.operations.schedule_import.crontab import WEEKDAYS, numbers, spec_of
from celery_wheel.operations.schedule_import.foreign import NotImportable
from celery_wheel.recurring import Crontab, Recurrence, RRule, Spec
from celery_wheel.recurring.crontab import NICKNAMES

START = datetime(2027, 2, 20, 11, 30, tzinfo=UTC)


def previewed(fields: str, count: int = 30, *, either_day: bool = True) -> list[datetime]:
    return instants(spec_of(fields, either_day=either_day), count)


def instants(spec: Spec | str, count: int) -> list[datetime]:
    found = Recurrence(spec).preview(int(START.timestamp() * 1_000), count)
    return [datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in found]


def expected(fields: str, count: int = 30, *, either_day: bool = True) -> list[datetime]:
    oracle = croniter(NICKNAMES.get(fields, fields), START, day_or=either_day, implement_cron_bug=True)
    return [oracle.get_next(datetime) for _ in range(count)]


def is_clear(fields: str) -> bool:
    """Whether the days are limited in one way at most: any other text is refused where Python reads it."""
    return fields.startswith("@") or "*" in (fields.split()[2][0], fields.split()[4][0])


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
    if is_clear(fields):
        assert instants(fields, 30) == expected(fields)


def test_random_fields_have_the_instants_of_cron() -> None:
    chance = random.Random(7)

    def field(least: int, most: int) -> str:
        low = chance.randint(least, most)
        high = chance.randint(low, most)
        if low == high:  # croniter reads 23-23/5 as 0-23/5
            return str(low)
        return chance.choice(["*", str(low), f"{low}-{high}", f"{low}-{high}/{chance.randint(1, 5)}", f"{low},{high}"])

    for _ in range(300):
        fields = " ".join(field(*span) for span in ((0, 59), (0, 23), (1, 28), (1, 12), (0, 7)))
        for either_day in (True, False):
            assert previewed(fields, 8, either_day=either_day) == expected(fields, 8, either_day=either_day), fields
        if is_clear(fields):
            assert instants(fields, 8) == expected(fields, 8), fields


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


TAB = """\
# nightly work
SHELL=/bin/sh
MAILTO="ops@example.com"
15 1 * * *  /usr/bin/backup --all
CRON_TZ=Asia/Tokyo
@daily  date +\\%F > /tmp/day
30 2 13 * 5  echo "Friday the 13th, or any"
30 2 13 * 5  echo "Friday the 13th, or any"
@reboot /usr/bin/start
0 5 * * 1  mail ann%Hello
61 * * * * never
* * * *
"""


def read(tmp_path: Path, text: str = TAB, **options: Any) -> dict[str, ForeignSchedule]:
    file = tmp_path / "tab"
    file.write_text(text)
    app = Celery("shop", set_as_current=False)
    options = {"task": "run_command", "zone": "", **options}
    return {one.name: one for one in READERS["crontab"](ImportOptions(app, file=file, **options))}


def test_each_line_is_a_schedule_of_its_command_or_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    found = read(tmp_path)
    assert {name: one.reason for name, one in found.items() if one.definition is None} == {
        "/usr/bin/start": "line 9: @reboot has no instants",
        "mail ann%Hello": "line 10: its command has an input (the text after %), for which a task has no place",
        "never": "line 11: cron field '61' must have numbers from 0 to 59, got '61'",
        "line 12": "a line must have a schedule and a command, got '* * * *'",
    }
    good = {name: one.definition for name, one in found.items() if one.definition is not None}
    zones = {name: one["recurrence"].get("zone") for name, one in good.items()}
    assert zones == {
        "/usr/bin/backup --all": "Europe/Berlin",
        "date +\\%F > /tmp/day": "Asia/Tokyo",
        'echo "Friday the 13th, or any"': "Asia/Tokyo",
        'echo "Friday the 13th, or any" #2': "Asia/Tokyo",
    }
    day = good["date +\\%F > /tmp/day"]
    assert (day["task"], day["args"], day["catch_up"]) == ("run_command", ["date +%F > /tmp/day"], "none")


def test_a_line_of_the_system_names_a_user(tmp_path: Path) -> None:
    found = read(tmp_path, "0 4 * * *  root  run-parts /etc/cron.daily\n@hourly ann touch x\n", system=True, zone="UTC")
    assert list(found) == ["run-parts /etc/cron.daily", "touch x"]


def test_a_zone_of_the_user_counts_more_than_that_of_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, "CRON_TZ=Asia/Tokyo\n0 4 * * * x\n", zone="Europe/Paris")
    assert found["x"].definition is not None
    assert found["x"].definition["recurrence"]["zone"] == "Europe/Paris"


def test_an_unknown_zone_is_the_reason_of_its_lines(tmp_path: Path) -> None:
    found = read(tmp_path, "CRON_TZ=Mars/Base\n0 4 * * * x\nCRON_TZ=UTC\n0 4 * * * y\n")
    assert "a time zone" in found["x"].reason
    assert found["y"].definition is not None


def test_a_file_and_a_task_are_needed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--file and --task"):
        read(tmp_path, task="")
    with pytest.raises(FileUnusable, match="readable crontab"):
        list(READERS["crontab"](ImportOptions(None, file=tmp_path / "none", task="x")))


def test_a_host_whose_zone_has_no_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr("celery_wheel.operations.schedule_import.foreign.LOCALTIME", tmp_path / "localtime")
    with pytest.raises(SettingError, match="name one with --zone"):
        read(tmp_path)
