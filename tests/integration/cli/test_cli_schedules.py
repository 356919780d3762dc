"""``celery wheel schedules …`` with a real scheduler: every command, its outputs and its exit codes."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.store.schedule_model import REPLACED
from tests.integration.cli.conftest import Commands
from tests.integration.cli.test_cli_reading import NASTY
from tests.kit.patience import wait_until
from tests.kit.stack import Stack


@pytest.fixture
def run(command: Commands) -> Any:
    def call(*arguments: str, code: int = 0, stdin: str | None = None) -> Any:
        found = command("schedules", *arguments, stdin=stdin)
        assert found.exit_code == code, found.output
        return json.loads(found.stdout) if "--json" in arguments and code != 2 else found.output

    return call


@pytest.fixture(autouse=True)
def no_schedules(command: Commands) -> Any:
    yield
    assert command("schedules", "delete", "--part", "", "--yes").exit_code == 0


def create(run: Any, name: str, *arguments: str) -> None:
    run("create", name, *(arguments or ("--every", "1h")), "--task", "tick")


def test_a_schedule_has_the_recurrence_the_call_and_the_policies_that_it_was_given(run: Any) -> None:
    said = run(
        *("create", "nightly", "--cron", "30 2 * * mon-fri", "--zone", "Europe/Paris", "--gap", "skip", "--times", "9"),
        *("--task", "app.report", "--args", "[1]", "--kwargs", '{"a": "b"}', "--queue", "mail", "--expires", "10m"),
        *("--option", "shadow=night", "--option", 'headers={"x": 1}', "--overlap", "skip", "--max-runtime", "1h"),
        *("--catch-up", "all", "--catch-up-window", "2h", "--jitter", "90", "--reason", "new"),
    )
    assert "1 done" in said
    found = run("show", "nightly", "--json")
    assert found["definition"] == {
        "recurrence": {
            "kind": "recurrence",
            "spec": {"kind": "crontab", "minute": "30", "hour": "2", "day_of_week": "mon-fri"},
            "zone": "Europe/Paris",
            "gap": "skip",
            "times": 9,
        },
        "task": "app.report",
        "args": [1],
        "kwargs": {"a": "b"},
        "options": {"queue": "mail", "expires": 600.0, "shadow": "night", "headers": {"x": 1}},
        "overlap": "skip",
        "max_runtime_ms": 3_600_000,
        "catch_up": "all",
        "catch_up_ms": 7_200_000,
        "jitter_ms": 90_000,
    }
    assert (found["state"], found["revision"], found["made"], len(found["upcoming_ms"])) == ("active", 1, 0, 5)
    assert found["next_ms"] == found["upcoming_ms"][0]
    assert [(one["what"], one["reason"]) for one in found["revisions"]] == [("created", "new")]
    shown = run("show", "nightly")
    assert "at 02:30 on Monday to Friday" in shown
    assert "Europe/Paris" in shown


DAILY = "DTSTART:20260105T090000\nRRULE:FREQ=DAILY"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (("--every", "90s"), {"kind": "interval", "every_ms": 90_000}),
        (("--cron", "@daily"), {"kind": "crontab", "minute": "0", "hour": "0"}),
        (("--rrule", DAILY.replace("\n", r"\n")), {"kind": "rrule", "text": DAILY}),
        (("--at", "2040-01-01", "--at", "2030-01-01"), {"kind": "instants", "at_ms": [1893456000000, 2208988800000]}),
    ],
)
def test_every_kind_of_recurrence_can_be_created(run: Any, kind: tuple[str, ...], spec: dict[str, Any]) -> None:
    create(run, "one", *kind)
    assert run("show", "one", "--json")["definition"]["recurrence"]["spec"] == spec


def test_a_name_that_exists_is_replaced_on_demand_only(run: Any) -> None:
    create(run, "one")
    assert "exists already" in run("create", "one", "--every", "5", "--task", "tick", code=1)
    run("create", "one", "--every", "5", "--task", "tick", "--replace")
    assert run("show", "one", "--json")["definition"]["recurrence"]["spec"]["every_ms"] == 5_000


def test_a_definition_is_copied_as_json(run: Any, tmp_path: Path) -> None:
    create(run, "one", "--cron", "0 9 * * *", "--zone", "Asia/Tokyo")
    definition = run("show", "one", "--json")["definition"]
    run("create", "two", "--definition", "-", stdin=json.dumps(definition))
    assert run("show", "two", "--json")["definition"] == definition
    file = tmp_path / "definition.json"
    file.write_text(json.dumps({**definition, "args": [2]}))
    run("update", "two", "--definition", str(file))
    assert run("show", "two", "--json")["definition"]["args"] == [2]
    assert "exists already" in run("create", "two", "--definition", "-", stdin=json.dumps(definition), code=1)
    assert "must be a field of a definition" in run("update", "two", "--definition", "-", stdin='{"tusk": 1}', code=1)


def test_an_update_keeps_other_parts_and_a_rollback_returns(run: Any) -> None:
    create(run, "one", "--cron", "0 9 * * *", "--zone", "Asia/Tokyo")
    run("update", "one", "--zone", "Europe/Paris", "--args", "[5]", "--reason", "moved")
    definition = run("show", "one", "--json")["definition"]
    assert (definition["recurrence"]["zone"], definition["recurrence"]["spec"]["hour"]) == ("Europe/Paris", "9")
    run("rollback", "one", "1")
    found = run("history", "one", "--json")
    assert [one["what"] for one in found["revisions"]][:3] == ["rolled back", "changed", "created"]
    assert run("show", "one", "--json")["definition"]["recurrence"]["zone"] == "Asia/Tokyo"
    assert "revision must be one of schedule" in run("rollback", "one", "9", code=2)


def test_each_page_but_the_last_names_the_next(run: Any, command: Commands) -> None:
    for n in range(5):
        create(run, f"report {n}")
    create(run, "other")
    pages = command.pages("schedules", "list", "--prefix", "report", "--limit", "2")
    assert [one["name"] for page in pages for one in page["items"]] == [f"report {n}" for n in range(5)]
    assert "more: --after 'report 1'" in run("list", "--part", "PORT", "--limit", "2")
    assert "every 1 h" in run("list", "--task", "tick")
    assert "no schedules" in run("list", "--queue", "none")


def test_schedules_are_chosen_by_names_by_lines_or_by_a_filter(run: Any) -> None:
    for name in ("report a", "report b", "other"):
        create(run, name)
    assert "1 done" in run("pause", "other", "--note", "holidays")
    assert run("show", "other", "--json")["note"] == "holidays"
    assert "2 done" in run("pause", "-", stdin="report a\nreport b\n")
    assert run("pause", "other", "none", "--json", code=3)["results"]["none"]["result"] == "unknown"
    assert "nothing was done" in run("resume", "--prefix", "report", code=1)
    assert run("resume", "--prefix", "report", "--yes", "--json")["done"] == 2
    assert [one["name"] for one in run("list", "--paused", "--json")["items"]] == ["other"]
    assert "name schedules" in run("delete", code=2)
    assert "name schedules" in run("delete", "other", "--part", "x", code=2)
    assert "no schedules match" in run("delete", "--part", "zzz", "--yes")
    assert "1 done" in run("delete", "other")
    assert "was deleted" in run("show", "other", code=3)
    assert run("history", "other", "--json")["revisions"][0]["what"] == "deleted"
    assert "does not exist" in run("history", "never", code=3)


def test_a_trigger_and_a_backfill_run_the_task(run: Any, stack: Stack) -> None:
    create(run, "one", "--cron", "* * * * *")
    found = run("trigger", "one", "--json")["results"]["one"]
    [task_id] = found["task_ids"]
    more = run("backfill", "one", "--from", "-10m", "--to", "-5m", "--json")["results"]["one"]["task_ids"]
    assert len(more) in (5, 6)
    wait_until(lambda: {task_id, *more} <= set(stack.in_queue("tick")), "all are in the queue")
    wait_until(
        lambda: {one["state"] for one in run("history", "one", "--json")["runs"]} == {"dispatched"}, "they are history"
    )
    runs = run("history", "one", "--json")["runs"]
    assert len([one for one in runs if one["requested"]]) == 1 + len(more)
    assert "must not be before --from" in run("backfill", "one", "--from", "-5m", "--to", "-10m", code=2)
    assert run("backfill", "none", "--from", "-5m", "--json", code=3)["unknown"] == 1


def test_a_task_that_the_app_does_not_have_is_shown_with_a_warning(run: Any) -> None:
    create(run, "one", "--every", "1d")
    assert run("show", "one", "--json")["warning"] == ""
    run("update", "one", "--task", "billing.charge")
    warning = "the app does not have the task billing.charge: it is sent by its name"
    assert run("show", "one", "--json")["warning"].startswith(warning)


def test_a_preview_needs_no_schedule_and_marks_the_days_on_which_clocks_change(run: Any) -> None:
    arguments = ("preview", "--cron", "30 2 * * *", "--zone", "Europe/Paris", "--from", "2027-03-26", "--count", "4")
    shown = run(*arguments)
    assert "Sun 2027-03-28 03:30:00 +0200" in shown
    assert "clocks forward 1 h" in shown
    found = run(*arguments, "--gap", "skip", "--json")["instants"]
    assert [(one["left_out"], one["shift_ms"]) for one in found][2] == ("gap", 3_600_000)
    create(run, "one", "--every", "1d")
    assert len(run("preview", "one", "--count", "3", "--json")["instants"]) == 3
    assert "does not exist" in run("preview", "none", code=3)
    assert "name a schedule" in run("preview", code=2)
    assert "name a schedule" in run("preview", "one", "--every", "5", code=2)
    run("create", "wrong", "--definition", "-", stdin='{"task": "tick", "broken": "its zone is unknown"}')
    assert "must be a schedule with instants, got 'its zone is unknown'" in run("preview", "wrong", code=2)
    assert run("show", "wrong", "--json")["state"] == "broken"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--every", "0", "--task", "t"), 1, "--every must be at least 1 ms, got 0 ms"),
        (("--cron", "61 * * * *", "--task", "t"), 2, "minute must be a crontab field"),
        (("--cron", "* * *", "--task", "t"), 2, "five fields"),
        (("--cron", "0 0 31 2 *", "--task", "t"), 2, "day_of_month must be"),
        (("--rrule", "FREQ=NEVER", "--task", "t"), 2, "--rrule"),
        (("--every", "5", "--zone", "Mars/Base", "--task", "t"), 1, "--zone must be a time zone"),
        (("--every", "5", "--cron", "* * * * *", "--task", "t"), 2, "name one of"),
        (("--every", "5"), 2, "name --task and one of"),
        (("--task", "t"), 2, "name --task and one of"),
        (("--every", "5", "--task", "t", "--args", "{}"), 2, "must be JSON, a list"),
        (("--every", "5", "--task", "t", "--option", "retry=1"), 1, "retry must be an option of a schedule"),
        (("--every", "5", "--task", "t", "--option", "x"), 2, "must be like shadow=nightly"),
        (("--every", "5", "--task", "t", "--without", '{"kind": "moon"}'), 2, "--without"),
        (("--every", "5", "--task", "t", "--without", '{"kind": "interval", "every_ms": 5}'), 2, "a calendar"),
        (("--every", "5", "--task", "t", "--catch-up", "all"), 1, "--catch-up-window must be given with"),
        (("--definition", "-"), 2, "must be JSON"),
        (("--definition", "-", "--task", "t"), 2, "name no other part"),
    ],
)
def test_a_wrong_definition_is_refused_by_its_rule(run: Any, arguments: tuple[str, ...], code: int, said: str) -> None:
    assert said in run("create", "one", *arguments, code=code, stdin="no json")
    assert "no schedules" in run("list")


def test_names_are_escaped_on_a_terminal(run: Any) -> None:
    run("create", "--every", "1h", "--task", NASTY, "--", NASTY)
    for arguments in (("list",), ("show", NASTY), ("pause", NASTY, "--note", NASTY), ("history", NASTY)):
        shown = run(*arguments)
        assert "\x1b" not in shown
        assert r"\x1b[2J\u202e[red]" in shown


TAB = "CRON_TZ=Europe/Paris\n30 2 * * * nightly --all\n@reboot start\n"


def test_an_import_creates_new_schedules_and_has_a_reason_for_the_others(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "tab"
    file.write_text(TAB)
    arguments = ("import", "--from", "crontab", "--file", str(file), "--task", "shell")
    tried = run(*arguments, "--dry-run", "--json", code=3)
    assert [(one["result"], len(one["next_ms"])) for one in tried["schedules"]] == [
        ("created", 3),
        ("not importable", 0),
    ]
    assert "nothing was changed (--dry-run)" in run(*arguments, "--dry-run", code=3)
    assert "no schedules" in run("list")
    said = run(*arguments, code=3)
    assert "1 created, 1 not importable" in said
    assert "@reboot has no instants" in said
    found = run("show", "nightly --all", "--json")
    assert (found["definition"]["args"], found["revisions"][0]["reason"]) == (
        ["nightly --all"],
        "imported from crontab",
    )
    file.write_text(TAB.replace("30 2", "45 3"))
    assert "1 exists" in run(*arguments, code=3)
    assert run("show", "nightly --all", "--json")["revision"] == 1
    assert "1 updated" in run(*arguments, "--update", code=3)
    assert run("show", "nightly --all", "--json")["definition"]["recurrence"]["spec"]["minute"] == "45"


def test_an_entry_that_was_disabled_is_imported_paused(run: Any, stack: Stack) -> None:
    entry = {"name": "off", "task": "t", "schedule": {"__type__": "interval", "every": 60, "relative": False}}
    stack.redis.hset("redbeat:off", "definition", json.dumps({**entry, "enabled": False}))
    assert "1 created" in run("import", "--from", "redbeat", "--url", stack.broker)
    found = run("show", "off", "--json")
    assert (found["state"], found["next_ms"]) == ("paused", None)
    run("resume", "off")
    assert run("show", "off", "--json")["state"] == "active"


def test_an_import_that_cannot_begin_says_so(run: Any, tmp_path: Path) -> None:
    assert "--file and --task" in run("import", "--from", "crontab", code=1)
    assert "must answer" in run("import", "--from", "redbeat", "--url", "redis://127.0.0.1:1", code=1)
    assert "opening them runs code" in run("import", "--from", "apscheduler", "--url", "sqlite://", code=1)
    assert "must be like jobs.report=app.report" in run("import", "--from", "rq-scheduler", "--map", "x", code=2)
    assert "INSTALLED_APPS must have" in run("import", "--from", "django-celery-beat", code=1)


def test_the_status_counts_schedules(run: Any, command: Commands) -> None:
    create(run, "one")
    create(run, "two")
    run("pause", "two")
    counts = command.json("status")["schedules"]
    assert (counts["total"], counts["paused"], counts["broken"], counts["with_base"]) == (2, 1, 0, 0)
    assert counts["next_ms"] == run("show", "one", "--json")["next_ms"]
    assert "2, of which 1 paused" in command("status").output


def test_schedules_that_wait_since_the_clock_went_back_are_shown(run: Any, command: Commands, stack: Stack) -> None:
    create(run, "one")
    assert command.json("status")["schedules"]["silent"] == {"count": 0, "until_ms": None}
    until_ms = run("show", "one", "--json")["next_ms"] + 86_400_000
    with closing(sqlite3.connect(stack.file)) as database, database:
        database.execute("UPDATE wheel_schedule SET last_ms = ?, next_ms = ?", (until_ms, until_ms + 3_600_000))
    assert command.json("status")["schedules"]["silent"] == {"count": 1, "until_ms": until_ms}
    assert "before the clock went back" in command("status").output
    assert "before the clock went back" in run("show", "one")
    assert "no instant runs twice" in command("doctor").output


@pytest.mark.slow
def test_runs_that_cancel_each_other_before_a_worker_begins_them_are_named(run: Any, command: Commands) -> None:
    create(run, "starved", "--every", "1s", "--overlap", "cancel_running")
    wait_until(lambda: run("show", "starved", "--json")["made"] >= 5, "each run was replaced by the next")
    assert "of starved was cancelled by the next one (cancel_running), begun or not" in command("doctor").output
    assert "runs was cancelled by the next one (cancel_running), begun or not" in run("show", "starved")
    assert run("show", "starved", "--json")["replaced"] >= REPLACED
