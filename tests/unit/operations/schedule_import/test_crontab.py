"""A crontab's lines: names, zones, users, and the lines that no schedule can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_wheel.errors import FileUnusable, SettingError
from celery_wheel.operations.schedule_import import READERS, ForeignSchedule, ImportOptions

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


def test_each_line_is_a_schedule_of_its_command_or_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
