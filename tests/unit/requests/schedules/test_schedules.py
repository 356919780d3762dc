"""``app.wheel.schedules``, answered by the real engine in virtual time; users' arguments become JSON definitions."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery.schedules import crontab, schedule

from celery_wheel import Celery
from celery_wheel.errors import ArgumentError, RecurrenceError, ScheduleExists, WheelUnavailable
from celery_wheel.recurring import Crontab, Instants, Interval, Recurrence, Weekdays
from celery_wheel.recurring.definition import patched
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.requests.schedules import Schedules
from celery_wheel.requests.schedules import schedules as module
from celery_wheel.requests.schedules.definitions import definition_of, history_view, patch_of, schedule_view
from celery_wheel.store.schedule_model import Revision, Schedule, ScheduleDetail
from celery_wheel.testing import VirtualWheel
from tests.kit.patience import patience

NINE = Crontab("0", "9")
DONE, ALREADY, UNKNOWN = ScheduleAnswer("done"), ScheduleAnswer("already"), ScheduleAnswer("unknown")


def names(found: Any) -> list[str]:
    return [one.name for one in found]


def test_a_schedule_is_as_it_was_created(schedules: Schedules) -> None:
    assert schedules.create("report", NINE, "app.report", (1,), {"a": 2}, queue="mail", jitter=60, times=5)
    found = known(schedules)
    assert found.recurrence == Recurrence(NINE, "Europe/Paris", times=5)
    assert (found.task, found.args, found.kwargs, found.options) == ("app.report", [1], {"a": 2}, {"queue": "mail"})
    assert found.policies == {"jitter": timedelta(minutes=1)}
    assert (found.source, found.revision, found.next_at) == ("api", 1, datetime(2030, 11, 21, 8, tzinfo=UTC))
    assert schedules.get("another") is None


def known(schedules: Schedules, name: str = "report") -> Any:
    found = schedules.get(name)
    assert found is not None
    return found


def run() -> None:
    """A task."""


def test_a_task_that_its_module_does_not_have_is_refused(app: Any, schedules: Schedules) -> None:
    for name in ("ledger.tasks.report", "ledger.tasks.mail"):
        app.task(run, name=name, shared=False)
    match = r"got 'ledger.tasks.reprot' \(did you mean ledger.tasks.report\?\); with check_task=False"
    with pytest.raises(ArgumentError, match=match):
        schedules.create("report", NINE, "ledger.tasks.reprot")
    assert schedules.create("report", NINE, "ledger.tasks.reprot", check_task=False) == DONE
    with pytest.raises(ArgumentError, match=r"ledger.tasks has mail, report"):
        schedules.update("report", task="ledger.tasks.0123456789")
    assert schedules.update("report", task="ledger.tasks.zzz", check_task=False) == DONE
    assert schedules.update("report", task=app.tasks["ledger.tasks.mail"]) == DONE
    unknown = {"recurrence": NINE, "task": "ledger.tasks.reprot"}
    found = schedules.create_many({"refused": unknown, "accepted": {**unknown, "check_task": False}})
    assert (found["refused"].result, found["accepted"]) == ("refused", DONE)
    assert "did you mean" in found["refused"].reason


#: A module ``shop`` may have tasks from the examples of the docs, which every app of this process has, too.
@pytest.mark.parametrize("task", ["billing.tasks.charge", "office.charge", "charge", "office.tasks.more.report"])
def test_a_task_of_other_workers_is_sent_by_its_name(
    app: Any, schedules: Schedules, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(run, name="office.tasks.report", shared=False)
    assert schedules.create("report", NINE, task) == DONE
    (line,) = [line for line in caplog.records if vars(line).get("action") == "unknown_task"]
    assert line.getMessage().startswith(f"task {task} is not registered in this process: it is sent by its name")


@pytest.mark.parametrize(
    ("source", "place"),
    [("beat", "beat_schedule"), ("django-celery-beat", "the tables of"), ("code", "wheel_schedule"), ("billing", "")],
)
def test_a_deleted_schedule_that_comes_back_says_so(schedules: Schedules, source: str, place: str) -> None:
    schedules.create("report", NINE, "app.report", source=source)
    found = schedules.delete("report")
    assert found.result == "done"
    assert (place in found.reason, "comes back" in found.reason) == (True, bool(place))


def test_a_page_is_shown_by_its_first_items(schedules: Schedules) -> None:
    one = {"recurrence": NINE, "task": "app.report", "args": ["secret"]}
    schedules.create_many({f"report-{n}": one for n in range(5)})
    page = schedules.list()
    first = "<schedule 'report-0' of app.report: next 2030-11-21 08:00:00+00:00, source api>"
    assert repr(page).startswith(f"<page of 5: {first} <")
    assert repr(page).endswith("source api> …; next=None>")
    assert "secret" not in repr(page)
    assert repr(schedules.list(prefix="nothing")) == "<page of 0; next=None>"


def test_a_name_is_created_once_unless_it_is_to_be_updated(report: Schedules) -> None:
    with pytest.raises(ScheduleExists, match="schedule 'report' exists already; nothing was changed"):
        report.create("report", NINE, "app.other")
    assert report.create("report", NINE, "app.report", queue="mail", exists="update") == ALREADY
    assert report.create("report", NINE, "app.other", exists="update") == DONE
    assert known(report).task == "app.other"


def test_an_update_changes_what_it_names(schedules: Schedules) -> None:
    schedules.create("report", NINE, "app.report", queue="mail", overlap="skip")
    assert schedules.update("report", zone="Asia/Tokyo", priority=3) == DONE
    found = known(schedules)
    assert (found.options, found.policies) == ({"queue": "mail", "priority": 3}, {"overlap": "skip"})
    assert found.recurrence == Recurrence(NINE, "Asia/Tokyo")
    assert schedules.update("report", priority=3) == ALREADY
    assert schedules.update("another", priority=3) == UNKNOWN
    assert schedules.update("report", priority=None, queue=None) == DONE
    assert schedules.update("report", queue=None) == ALREADY, "None is the default also where no option is set"


def test_a_refused_update_of_one_name_raises_and_of_several_is_a_result(report: Schedules) -> None:
    schedules, rule = report, "zone must be a time zone, like Europe/Paris or .02:00, got 'Mars'"
    with pytest.raises(RecurrenceError, match=f"schedule 'report': {rule}"):
        schedules.update("report", zone="Mars")
    [answer] = schedules.update(["report"], zone="Mars").values()
    assert answer.result == "refused"
    assert answer.reason.startswith("zone must be")
    with pytest.raises(RecurrenceError, match="schedule 'report': catch_up_window must be given with"):
        schedules.update("report", catch_up="all")
    [answer] = schedules.create_many({"b": {"recurrence": NINE, "task": "a", "catch_up": "all"}}).values()
    assert answer.reason.startswith("catch_up_window must be given with")
    document = json.loads(known(schedules).definition)
    with pytest.raises(RecurrenceError, match="catch_up_ms must be given with"):  # a field of JSON keeps its name
        schedules.change("create", {"b": {**document, "catch_up": "all"}}, single="b")
    assert known(schedules).revision == 1


def test_many_are_created_and_the_wrong_ones_are_refused(schedules: Schedules) -> None:
    schedules.create("b", NINE, "app.report")
    rows: dict[Any, Any] = {name: {"recurrence": NINE, "task": "app.report"} for name in "abc"}
    wrong: dict[Any, Any] = {
        "d": {"recurrence": 0, "task": "x"},
        "e": {"recurrence": NINE, "task": "x", "args": [b"x"]},
        "": {"recurrence": NINE, "task": "x"},
        "f": {"recurrence": NINE, "task": "x", "exists": "update"},
    }
    found = schedules.create_many(rows | wrong)
    assert {name: found[name] for name in "abc"} == {"a": DONE, "b": ALREADY, "c": DONE}
    assert {name for name, one in found.items() if one.result == "refused"} == set(wrong)
    assert "args must be values of JSON" in found["e"].reason
    assert found["f"].reason == "exists is for all schedules: give it to create_many itself"
    assert names(schedules.list()) == ["a", "b", "c"]


def test_a_filter_selects_by_prefix_task_queue_source_and_state(schedules: Schedules) -> None:
    schedules.create("acme-1", NINE, "app.report", queue="mail")
    schedules.create("acme-2", NINE, "app.other", kwargs={"task": "app.report", "queue": "mail"})
    schedules.create("ACME-3", NINE, "app.report", source="code")
    schedules.create("acm%", NINE, "app.ünicode", queue='a"b')
    schedules.pause("acme-1")
    assert names(schedules.list(prefix="acme-")) == ["acme-1", "acme-2"]
    assert names(schedules.list(prefix="acm%")) == ["acm%"]
    assert names(schedules.list(task="app.report")) == ["ACME-3", "acme-1"]
    assert names(schedules.list(task="app.ünicode")) == names(schedules.list(queue='a"b')) == ["acm%"]
    assert names(schedules.list(queue="mail")) == ["acme-1"]
    assert names(schedules.list(source="code")) == ["ACME-3"]
    assert names(schedules.list(paused=True)) == ["acme-1"]
    assert names(schedules.list(broken=True)) == []


def test_a_command_for_a_filter_reaches_every_page(schedules: Schedules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 3)
    schedules.create_many({f"n{number:02}": {"recurrence": NINE, "task": "app.report"} for number in range(10)})
    schedules.create("other", NINE, "app.other")
    paused = schedules.pause(schedules.where(task="app.report"), "holidays")
    assert paused == dict.fromkeys([f"n{number:02}" for number in range(10)], DONE)
    assert known(schedules, "n07").note == "holidays"
    assert schedules.resume(["n01", "other", "none"]) == {"n01": DONE, "other": ALREADY, "none": UNKNOWN}
    assert len(schedules.delete(schedules.where(paused=True))) == 9
    assert names(schedules.list()) == ["n01", "other"]
    page = schedules.list(limit=1)
    assert (names(page), names(schedules.list(after=page.next or ""))) == (["n01"], ["other"])


@pytest.mark.slow
def test_answers_of_earlier_parts_are_kept_when_a_later_part_has_none(
    schedules: Schedules, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)
    for name in "abc":
        schedules.create(name, NINE, "app.report")
    turn = app.wheel.turn
    turns = iter([turn])
    app.wheel.turn = lambda: next(turns, int)()
    with pytest.raises(WheelUnavailable) as raised:
        schedules.pause(schedules.where(), timeout=patience(0.5))
    assert raised.value.results == {"a": DONE, "b": DONE}
    app.wheel.turn = turn
    assert names(schedules.list(paused=True)) == ["a", "b"]


def test_history_has_each_revision_and_rollback_returns_to_it(schedules: Schedules) -> None:
    schedules.create("report", NINE, "app.report", queue="mail", actor="anna")
    schedules.update("report", queue="slow", reason="too slow")
    schedules.pause("report", "holidays")
    assert schedules.rollback("report", 1) == DONE
    history: Any = schedules.history("report")
    assert [one.what for one in history.revisions] == ["rolled back", "paused", "changed", "created"]
    assert history.revisions[2].reason == "too slow"
    assert history.revisions[3].actor == "anna"
    assert history.revisions[2].before.options == history.schedule.options == {"queue": "mail"}
    assert history.schedule.paused, "a rollback is of the definition"
    with pytest.raises(LookupError, match="must be one of schedule 'report', got 9; the store has 1 to 4"):
        schedules.rollback("report", 9)
    schedules.delete("report")
    assert schedules.rollback("report", 1) == UNKNOWN
    deleted: Any = schedules.history("report")
    assert (deleted.schedule, deleted.revisions[0].what) == (None, "deleted")
    assert schedules.history("another") is None


def test_a_revision_is_that_of_the_schedule_that_has_the_name_now(schedules: Schedules) -> None:
    schedules.create("report", NINE, "app.old")
    schedules.update("report", task="app.older")
    schedules.delete("report")
    schedules.create("report", NINE, "app.new")
    schedules.update("report", task="app.newer")
    schedules.rollback("report", 1)
    assert known(schedules).task == "app.new"


def test_a_preview_is_in_the_zone_of_the_schedule(schedules: Schedules) -> None:
    schedules.create("report", NINE, "app.report", zone="Asia/Tokyo", times=1)
    assert schedules.preview("report") == [datetime(2030, 11, 21, 9, tzinfo=ZoneInfo("Asia/Tokyo"))]
    found = schedules.preview(NINE, 2, after=datetime(2026, 10, 23, 12, tzinfo=UTC))
    assert [f"{one:%d %H:%M%z}" for one in found] == ["24 09:00+0200", "25 09:00+0100"]
    assert schedules.preview("0 9 * * *", 2, after=datetime(2026, 10, 23, 12, tzinfo=UTC)) == found
    assert schedules.backfill("another", DAY, DAY) == UNKNOWN


DAY = datetime(2026, 1, 1, tzinfo=UTC)
WRONG: dict[str, Any] = {
    "a name must be a text, got 3": lambda one: one.get(3),
    "a name must be a text, got 7": lambda one: one.create(7, NINE, "app.report"),
    "a name must be a text of 1 to 512 characters, got ''": lambda one: one.create("", NINE, "app.report"),
    "a name must be a text of 1 to 512 characters, got 'xx": lambda one: one.pause(["report", "x" * 1_000]),
    "a name must be text that can be written": lambda one: one.history("\ud800"),
    "a name must be without NUL": lambda one: one.preview("a\0"),
    "must be a day that occurs in month_of_year": lambda one: one.preview(Crontab("0", "0", "*", "30", "2")),
    "there is no schedule 'another'": lambda one: one.preview("another"),
    "update must have a value to change, got none": lambda one: one.update("report", reason="nothing"),
    'exists must be "error" or "update"': lambda one: one.create("report", NINE, "app.report", exists="ignore"),
    "first must be a datetime with a time zone": lambda one: one.backfill("report", DAY.replace(tzinfo=None), DAY),
    "n must be from 1 to 10,000, got -1": lambda one: one.preview("report", -1),
    "n must be a whole number": lambda one: one.preview("report", "3"),
    "limit must be from 1 to 10,000, got 0": lambda one: one.list(limit=0),
    "limit must be a whole number": lambda one: one.list(limit="5"),
    "after must be a text": lambda one: one.list(after=3),
    "part must be text that can be written": lambda one: one.list(part="\ud800"),
    "task must be a text": lambda one: one.pause(one.where(task=3)),
    "paused must be True or False, got 'no'": lambda one: one.where(paused="no"),
    "shard must be the number of a shard": lambda one: one.where(shard=10**30),
    "delete got an unknown option 'resaon'": lambda one: one.delete("report", resaon="closed"),
    "source must be a text of 1 to": lambda one: one.create("another", NINE, "app.report", source=""),
    "args must be values of JSON, got .*is not JSON": lambda one: one.update("report", args=[{1}]),
    "schedules must be a dict from name to arguments": lambda one: one.create_many([{"name": "a", "recurrence": NINE}]),
    "or pairs of them, like .*, got .'a', 3600.": lambda one: one.create_many([("a", 3_600)]),
    "overlap must be one of allow": lambda one: one.backfill("report", DAY, DAY, overlap="sometimes"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_value_is_named_before_anything_is_sent(report: Schedules, message: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        WRONG[message](report)
    assert names(report.list()) == ["report"]
    assert report.history("report").revisions[0].what == "created"  # type: ignore[union-attr]


NINE_DAILY = Crontab("0", "9")
NINE_JSON = {"kind": "crontab", "minute": "0", "hour": "9"}
PARIS = {"kind": "recurrence", "spec": NINE_JSON, "zone": "Europe/Paris"}
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
AFTER_MONDAY = Instants([round(MONDAY.timestamp() + 86_400) * 1_000])


def of(app: Any, recurrence: Any, **values: Any) -> dict[str, Any]:
    return definition_of(app, {"task": "app.report", **values, "recurrence": recurrence})


class Market(schedule):  # type: ignore[misc]
    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


@pytest.mark.parametrize(
    "recurrence",
    [
        *(NINE_DAILY, Recurrence(NINE_DAILY, "Europe/Paris"), crontab("0", "9"), PARIS, "0 9 * * *", Crontab(0, 9)),
        {**PARIS, "spec": {"kind": "crontab", "minute": 0, "hour": [9]}},
    ],
)
def test_each_form_of_a_recurrence_has_one_definition(app: Any, recurrence: Any) -> None:
    assert of(app, recurrence) == {"recurrence": PARIS, "task": "app.report"}


@pytest.mark.parametrize("zone", ["Asia/Tokyo", ZoneInfo("Asia/Tokyo")])
def test_a_zone_is_stored_by_its_name(app: Any, zone: Any) -> None:
    assert of(app, "0 9 * * *", zone=zone)["recurrence"]["zone"] == "Asia/Tokyo"
    assert "zone" not in of(app, "0 9 * * *", zone=UTC)["recurrence"]


@pytest.mark.parametrize("every", [300, 300.0, timedelta(minutes=5), schedule(300), Interval(300_000)])
def test_an_interval_counts_from_1970_wherever_it_is_created(app: Any, every: Any) -> None:
    interval = {"kind": "recurrence", "spec": {"kind": "interval", "every_ms": 300_000}}
    assert of(app, every, zone="UTC")["recurrence"] == interval


def test_an_interval_counts_from_its_start(app: Any) -> None:
    spec = of(app, 300, start=MONDAY + timedelta(seconds=7))["recurrence"]["spec"]
    assert spec["anchor_ms"] % 300_000 == 7_000


def test_a_definition_has_all_values_in_milliseconds_and_no_defaults(app: Any) -> None:
    found = of(
        app,
        Crontab("0", "9"),
        args=(1,),
        kwargs={"a": [2]},
        zone="UTC",
        gap="shift",
        start=MONDAY,
        times=3,
        without=Weekdays(("sun",)),
        catch_up="all",
        catch_up_window=timedelta(hours=1),
        overlap="allow",
        max_runtime=1.5,
        jitter=60,
        jitter_by="name",
        queue="mail",
        expires=timedelta(minutes=1),
    )
    assert found == {
        "recurrence": {
            "kind": "recurrence",
            "spec": NINE_JSON,
            "start_ms": int(MONDAY.timestamp()) * 1_000,
            "times": 3,
            "without": {"kind": "weekdays", "days": ["sun"]},
        },
        "task": "app.report",
        "args": [1],
        "kwargs": {"a": [2]},
        "catch_up": "all",
        "catch_up_ms": 3_600_000,
        "max_runtime_ms": 1_500,
        "jitter_ms": 60_000,
        "jitter_by": "name",
        "options": {"queue": "mail", "expires": 60.0},
    }


def test_a_patch_has_the_given_values_and_none_removes_a_value(app: Any) -> None:
    text = (
        '{"recurrence":{"kind":"recurrence","spec":{"kind":"solar"},"zone":"Asia/Tokyo","times":3},"task":"a",'
        '"args":[1],"options":{"queue":"mail","priority":3},"overlap":"skip"}'
    )
    patch = patch_of(app, {"recurrence": Crontab("0", "9"), "times": None, "queue": None, "overlap": None, "args": ()})
    assert patched(text, patch) == {
        "recurrence": {"kind": "recurrence", "spec": NINE_JSON, "zone": "Asia/Tokyo"},
        "task": "a",
        "options": {"priority": 3},
    }
    whole = patched(text, patch_of(app, {"recurrence": Recurrence(Crontab("0", "9"))}))
    assert whole["recurrence"] == {"kind": "recurrence", "spec": NINE_JSON}


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        ({"recurrence": None}, TypeError, "a schedule must have a recurrence, got None"),
        ({"recurrence": b"0 9 * * *"}, TypeError, "recurrence must be a Recurrence, a spec like"),
        ({"recurrence": "daily"}, RecurrenceError, "a crontab must be a text of five fields, like '30 2 .*got 'daily'"),
        ({"recurrence": True}, TypeError, "recurrence must be a Recurrence"),
        ({"recurrence": 0}, RecurrenceError, "^recurrence must be at least 1 ms, got 0 ms$"),
        ({"recurrence": -1}, ArgumentError, "recurrence must be 0 s or more"),
        ({"recurrence": math.nan}, ArgumentError, "recurrence must be 0 s or more"),
        ({"recurrence": Market(300)}, ArgumentError, "which decides by itself when it is due"),
        ({"recurrence": {"kind": "crontab", "hour": "25"}}, RecurrenceError, "hour must be a crontab field"),
        ({"zone": "Mars/Olympus"}, RecurrenceError, "zone must be a time zone"),
        ({"start": datetime(2026, 1, 1)}, ArgumentError, "start must be a datetime with a time zone"),  # noqa: DTZ001
        ({"start": "2026-01-01"}, TypeError, "start must be a datetime, got '2026-01-01'"),
        ({"until": datetime(1960, 1, 1, tzinfo=UTC)}, ArgumentError, "until must be from 1970"),
        ({"start": MONDAY, "until": MONDAY - timedelta(1)}, RecurrenceError, "^until must be at or after the start"),
        ({"task": ""}, RecurrenceError, "task must be a text like 'app.report', got ''"),
        ({"args": [b"x"]}, RecurrenceError, "args must be values of JSON"),
        ({"kwargs": {"at": MONDAY}}, RecurrenceError, "kwargs must be values of JSON"),
        ({"kwargs": {"n": math.inf}}, RecurrenceError, "kwargs must be values of JSON"),
        ({"args": 7}, ArgumentError, r"args must be a list like \[1\], got 7"),
        ({"args": "text"}, ArgumentError, r"args must be a list like \[1\], got 'text'"),
        ({"kwargs": [1]}, ArgumentError, "kwargs must be an object like"),
        ({"catch_up": "all"}, RecurrenceError, '^catch_up_window must be given with the catch_up "all"'),
        ({"catch_up_window": 90}, RecurrenceError, "^catch_up_window must be given with .*, got '1 min 30 s'$"),
        ({"catch_up": "all", "catch_up_window": 0}, RecurrenceError, "^catch_up_window must be at least 1 ms, got 0"),
        ({"max_runtime": 0}, RecurrenceError, "^max_runtime must be at least 1 ms, got 0 ms$"),
        ({"jitter": timedelta(days=8)}, RecurrenceError, "^jitter must be at most 7 d, got 8 d$"),
        ({"priority": 300}, RecurrenceError, "^priority must be a whole number of at least 0"),
        ({"until": MONDAY, "recurrence": AFTER_MONDAY}, RecurrenceError, "^recurrence must be a rule"),
        ({"max_runtime": "1h"}, TypeError, "max_runtime must be a number of seconds"),
        ({"overlap": "wait"}, RecurrenceError, "overlap must be one of allow, skip, queue_one, cancel_running"),
        ({"quue": "mail"}, RecurrenceError, "^quue must be an option of a schedule"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(app: Any, values: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        definition_of(app, {"recurrence": Crontab("0", "9"), "task": "app.report", **values})


BROKEN = '{"task": "report", "overlap": "skip", "max_runtime_ms": 4611686018427387904, "jitter_ms": -1}'


@pytest.mark.parametrize("far_ms", [-(2**62), 2**63 - 1])
def test_a_value_outside_of_time_keeps_no_schedule_from_being_shown(far_ms: int) -> None:
    found = schedule_view(Schedule(1, "report", BROKEN, "api", 1, far_ms, 0, far_ms, since_ms=far_ms))
    at = datetime(1970 if far_ms < 0 else 9999, 1, 1, tzinfo=UTC)
    assert (found.next_at, found.last_at, found.since) == (at, at, at)
    assert (found.recurrence, found.policies) == (None, {"overlap": "skip"})


@pytest.mark.parametrize("before", ["no json", "{}", "[]", '{"name": "report", "next_ms": "soon"}'])
def test_a_revision_that_cannot_be_read_keeps_no_history_from_being_shown(before: str) -> None:
    change = Revision(1, 2, "report", "paused", "ann", "", 1_000, before)
    [found] = history_view(ScheduleDetail(None, [change], [], [])).revisions
    assert (found.number, found.actor) == (2, "ann")
    assert found.before is not None
    assert found.before.broken
    assert found.before.note.startswith("the revision has no schedule that can be read: ")


NOW = datetime(2030, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)


@pytest.fixture
def schedules(app: Any) -> Iterator[Schedules]:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(NOW)
        yield app.wheel.schedules


@pytest.fixture
def report(schedules: Schedules) -> Schedules:
    """Schedules with one of the name report, at nine each day."""
    schedules.create("report", Crontab("0", "9"), "app.report", queue="mail")
    return schedules
