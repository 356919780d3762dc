"""Beat's entries, declarations and django-celery-beat's rows: those that become definitions, and the others."""

import decimal
import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.beat import BeatLazyFunc, PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedstate, schedule, solar

from celery_wheel import Celery
from celery_wheel.recurring import Crontab, Recurrence, from_json
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.sources import EntryChanges, SourceEntry
from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry, is_patched, to_celery
from celery_wheel.scheduler.sources.beat_entries import EntryListing, declared_entries, entry_of
from celery_wheel.scheduler.sources.django_rows import TaskColumns, at_ms, entry_of_row, is_over
from celery_wheel.store.schedule_model import Schedule

LAST = datetime(2030, 11, 20, 12, tzinfo=UTC)
LAST_MS = int(LAST.timestamp() * 1_000)


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)


class Market(schedule):
    def is_due(self, last_run_at: datetime) -> Any:
        return schedstate(is_due=False, next=60.0)


class OwnEntry(ScheduleEntry):
    def is_due(self) -> Any:
        return schedstate(is_due=False, next=60.0)


def beat_entry(app: Any, kind: type = ScheduleEntry, **values: Any) -> Any:
    given = {"name": "report", "task": "app.report", "schedule": 30.0, "last_run_at": LAST, "app": app}
    return kind(**{**given, **values})


def test_an_entry_becomes_a_definition(app: Any) -> None:
    options = {"queue": "mail", "expires": 60, "headers": {"tenant": "acme"}, "priority": 3}
    found = entry_of(beat_entry(app, args=(1, ("a",)), kwargs={"b": None}, options=options), app)
    assert found.after_ms == LAST_MS
    assert found.document == {
        "recurrence": {
            "kind": "recurrence",
            "spec": {"kind": "interval", "every_ms": 30_000, "anchor_ms": LAST_MS},
        },
        "task": "app.report",
        "args": [1, ("a",)],
        "kwargs": {"b": None},
        "options": {**options, "headers": {"tenant": "acme", "celery_beat_task": True}},
    }
    assert read_definition(to_text(found.document)).call.args == [1, ["a"]]


@pytest.mark.parametrize(
    "own",
    [
        lambda app: schedule(timedelta(seconds=90), app=app),
        lambda app: schedule(timedelta(days=2), relative=True, app=app),
        lambda app: crontab("*/5", "8-17", day_of_week="mon-fri", app=app),
        lambda app: solar("sunset", -37.81, 144.96, app=app),
    ],
)
def test_the_definition_has_its_own_schedule_of_celery_again(app: Any, own: Any) -> None:
    given = own(app)
    found = from_json(entry_of(beat_entry(app, schedule=given), app).document["recurrence"])
    assert isinstance(found, Recurrence)
    again = to_celery(found, app)
    assert (type(again), again) == (type(given), given)
    assert str(again.tz) == str(given.tz) == "Europe/Paris"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"schedule": Market(60)}, "its schedule, Market, decides itself when it is due"),
        ({"kind": OwnEntry}, "its class, OwnEntry, decides itself when it is due"),
        ({"args": (decimal.Decimal("1.5"),)}, "args[0] is not a value of JSON: Decimal('1.5')"),
        ({"kwargs": {"at": LAST}}, "kwargs.at is not a value of JSON"),
        ({"kwargs": {"a": {1: 2}}}, "kwargs.a has the key 1, which is not a text"),
        ({"kwargs": {"now": BeatLazyFunc(datetime.now)}}, "kwargs.now is not a value of JSON"),
        ({"kwargs": {"x": float("nan")}}, "kwargs.x is not a value of JSON: nan"),
        ({"args": ((1, 2),), "options": {"serializer": "pickle"}}, "args[0] is not a value of JSON: (1, 2)"),
        ({"options": {"countdown": 5}}, "options.countdown must be an option of a schedule"),
        ({"options": {"expires": LAST}}, "options.expires is not a value of JSON"),
        ({"options": {"queue": object()}}, "options.queue is not a value of JSON"),
        ({"schedule": 0.0}, "its schedule, schedule, decides itself"),
    ],
)
def test_an_entry_that_only_its_own_code_can_run_stays_with_beat(app: Any, values: dict[str, Any], reason: str) -> None:
    found = entry_of(beat_entry(app, **values), app)
    assert found.document.keys() == {"task", "base"}
    assert found.document["base"].startswith(f"it runs in Beat's own scheduler: {reason}")


def test_the_serializer_of_the_task_decides_whether_a_tuple_is_a_list(app: Any) -> None:
    @app.task(name="app.pickled", serializer="pickle", shared=False)
    def pickled(pair: object) -> None: ...

    found = entry_of(beat_entry(app, task="app.pickled", args=((1, 2),)), app)
    assert found.document["base"] == "it runs in Beat's own scheduler: args[0] is not a value of JSON: (1, 2)"


def test_a_crontab_that_celery_alone_can_read_stays_with_beat(app: Any) -> None:
    found = entry_of(beat_entry(app, schedule=crontab("*/15 past", app=app)), app)
    assert "minute must be a crontab field" in found.document["base"]


def test_an_entry_that_raises_stays_with_beat(app: Any) -> None:
    class Failing(schedule):
        @property
        def run_every(self) -> Any:
            raise KeyError("no market today")

        @run_every.setter
        def run_every(self, _: Any) -> None: ...

    assert "no market today" in entry_of(beat_entry(app, schedule=Failing(5)), app).document["base"]


def test_a_listing_yields_all_entries_and_then_those_that_differ() -> None:
    first, other = SourceEntry({"task": "app.a"}), SourceEntry({"task": "app.b"})
    listing = EntryListing()
    assert (listing.read(), listing.is_followed) == (None, False)
    listing.put({"a": first, "b": first})
    for _ in range(2):  # until it was followed
        changes = listing.read()
        assert changes is not None
        assert changes.all_names == {"a", "b"} == changes.entries.keys()
    assert not listing.is_followed
    listing.followed()
    assert listing.is_followed
    assert listing.read() is None
    listing.put({"a": first, "c": other})
    assert not listing.is_followed
    assert listing.read() == EntryChanges({"c": other}, ["b"])
    listing.put({"a": other, "c": other})
    listing.followed()
    assert not listing.is_followed, "a listing came while the former one was followed"
    assert listing.read() == EntryChanges({"a": other})
    listing.followed()
    listing.reset()
    assert listing.read() == EntryChanges({"a": other, "c": other}, all_names={"a", "c"})


NINE = {"kind": "recurrence", "spec": {"kind": "crontab", "minute": "0", "hour": "9"}}


def declare(app: Any, name: str, value: Any) -> None:
    @app.task(name=name, shared=False, wheel_schedule=value)
    def task() -> None: ...


def documents(app: Any) -> dict[str, dict[str, Any]]:
    return {name: entry.document for name, entry in declared_entries(app).items()}


@pytest.mark.parametrize(
    "value", [Crontab("0", "9"), "0 9 * * *", crontab("0", "9"), NINE["spec"], {"recurrence": Crontab("0", "9")}]
)
def test_a_schedule_has_the_name_of_its_task(value: Any) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)  # in UTC, which a definition does not name
    declare(app, "app.report", value)
    assert documents(app) == {"app.report": {"recurrence": NINE, "task": "app.report"}}


def test_a_task_may_declare_several_schedules(app: Any) -> None:
    nightly = {"name": "nightly", "recurrence": Crontab("0", "9"), "zone": "Asia/Tokyo", "queue": "mail", "args": [1]}
    declare(app, "app.report", [nightly, 60])
    found = documents(app)
    assert found["nightly"] == {
        "recurrence": {**NINE, "zone": "Asia/Tokyo"},
        "task": "app.report",
        "args": [1],
        "options": {"queue": "mail"},
    }
    assert found["app.report"]["recurrence"]["spec"] == {"kind": "interval", "every_ms": 60_000}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"recurrence": Crontab("0", "9"), "zone": "Mars"}, "zone must be a time zone"),
        ({"zone": "Asia/Tokyo"}, "a schedule must have a recurrence, got None"),
        ("daily", "a crontab must be a text of five fields"),
        ({"name": "\0", "recurrence": 60}, "name must be without NUL characters"),
        ({"recurrence": 60, "quue": "mail"}, "quue must be an option of a schedule"),
    ],
)
def test_a_wrong_declaration_is_broken_and_no_other_suffers(app: Any, value: Any, reason: str) -> None:
    declare(app, "app.report", value)
    declare(app, "app.other", 60)
    found = documents(app)
    assert found["app.report"]["task"] == "app.report"
    assert found["app.report"]["broken"].startswith(f"wheel_schedule of app.report: {reason}")
    assert found["app.other"]["recurrence"]


def test_a_second_schedule_with_the_same_name_is_broken(app: Any) -> None:
    declare(app, "app.a", {"name": "nightly", "recurrence": 60})
    declare(app, "app.b", {"name": "nightly", "recurrence": 60})
    found = documents(app)
    assert found["nightly"]["task"] == "app.a"
    assert found["app.b 2"] == {"task": "app.b", "broken": "another task declares 'nightly'"}


class Producer:
    due_us = LAST_MS * 1_000


def stored_schedule(source: str = "beat", **options: Any) -> tuple[Schedule, Any]:
    spec = {"kind": "crontab", "hour": "9", "minute": "0"}
    recurrence = {"kind": "recurrence", "spec": spec, "zone": "Asia/Tokyo"}
    text = to_text({"recurrence": recurrence, "task": "app.report", "args": [1], "options": options})
    return Schedule(1, "report", text, source, 1, LAST_MS, made=4), read_definition(text)


class Watched(Scheduler):
    seen: list[tuple[Any, Any]]

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        self.seen.append((entry, producer))
        entry.options["headers"]["traced"] = True


def test_an_entry_is_as_beat_would_have_it(app: Any) -> None:
    Watched.seen = []
    apply_entry, producer = BeatApplyEntry(Watched, app), Producer()
    stored, definition = stored_schedule(queue="mail", headers={"tenant": "acme"}, expires=60)
    assert apply_entry.watches(stored)
    apply_entry(stored, definition, producer)
    [(entry, given)] = Watched.seen
    assert given is producer
    assert (entry.name, entry.task, entry.args, entry.total_run_count) == ("report", "app.report", [1], 4)
    assert (entry.schedule._orig_hour, str(entry.schedule.tz)) == ("9", "Asia/Tokyo")
    assert entry.options["expires"] == LAST + timedelta(seconds=60), "of the instant, not of the moment"
    assert definition.call.options["headers"] == {"tenant": "acme"}, "the next occurrence has headers of its own"


def test_schedules_of_the_api_are_none_of_beats(app: Any) -> None:
    assert not BeatApplyEntry(Watched, app).watches(stored_schedule("api")[0])


def test_celerys_own_functions_leave_it_to_the_template(app: Any) -> None:
    assert not is_patched(PersistentScheduler)
    assert not BeatApplyEntry(PersistentScheduler, app).watches(stored_schedule()[0])


@pytest.mark.parametrize("name", ["apply_entry", "apply_async", "send_task"])
def test_a_wrapper_that_takes_over_name_and_module_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = getattr(Scheduler, name)

    @functools.wraps(own)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    monkeypatch.setattr(Scheduler, name, wrapper)
    assert is_patched(PersistentScheduler)


def test_the_instance_writes_no_schedule(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[datetime] = []
    monkeypatch.setattr(PersistentScheduler, "sync", lambda self: synced.append(datetime.now(UTC)))

    class Traced(PersistentScheduler):
        def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)

        def send_task(self, *args: Any, **kwargs: Any) -> Any:
            return None

    BeatApplyEntry(Traced, app)(*stored_schedule(), Producer())
    assert synced == []


NOON = datetime(2030, 11, 20, 12, tzinfo=UTC)
NOON_MS = at_ms(NOON)
HOUR = timedelta(hours=1)

INTERVAL = {"interval_id": 1, "interval__every": 10, "interval__period": "minutes"}
CRONTAB = {
    "crontab_id": 1,
    "crontab__minute": "30",
    "crontab__hour": "9",
    "crontab__day_of_week": "*",
    "crontab__day_of_month": "*",
    "crontab__month_of_year": "*",
    "zone": "America/New_York",
}
SOLAR = {"solar_id": 1, "solar__event": "sunrise", "solar__latitude": 48.85, "solar__longitude": 2.35}
CLOCKED = {"clocked_id": 1, "clocked__clocked_time": NOON + HOUR, "one_off": True}


def row(**values: Any) -> TaskColumns:
    plain: dict[str, Any] = {
        **dict.fromkeys(TaskColumns._fields),
        "pk": 1,
        "name": "report",
        "task": "app.report",
        "enabled": True,
        "args": "[]",
        "kwargs": "{}",
        "headers": "{}",
        "one_off": False,
        "total_run_count": 0,
        "date_changed": NOON,
    }
    return TaskColumns(**{**plain, **values})


def instants(found: Any, n: int = 3) -> list[str]:
    recurrence = read_definition(to_text(found.document)).recurrence
    times = (datetime.fromtimestamp(at / 1_000, UTC) for at in recurrence.preview(found.after_ms, n))
    return [f"{at:%d %H:%M}" for at in times]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (INTERVAL, ["20 12:10", "20 12:20", "20 12:30"]),
        ({**INTERVAL, "last_run_at": NOON - timedelta(minutes=3)}, ["20 12:07", "20 12:17", "20 12:27"]),
        ({**INTERVAL, "start_time": NOON + HOUR}, ["20 13:00", "20 13:10", "20 13:20"]),
        ({**INTERVAL, "expires": NOON + timedelta(minutes=20)}, ["20 12:10"]),
        ({**INTERVAL, "one_off": True}, ["20 12:10"]),
        (CRONTAB, ["20 14:30", "21 14:30", "22 14:30"]),
        ({**CRONTAB, "crontab__minute": "0, 30"}, ["20 14:00", "20 14:30", "21 14:00"]),
        ({**CRONTAB, "start_time": NOON - 72 * HOUR}, ["17 14:30", "18 14:30", "19 14:30"]),
        ({**CRONTAB, "start_time": NOON - 72 * HOUR, "last_run_at": NOON - HOUR}, ["20 14:30", "21 14:30", "22 14:30"]),
        (SOLAR, ["21 07:08", "22 07:10", "23 07:11"]),
        (CLOCKED, ["20 13:00"]),
        ({**CLOCKED, "clocked__clocked_time": NOON - HOUR}, ["20 11:00"]),
    ],
)
def test_each_kind_of_schedule_runs_at_its_instants(values: dict[str, Any], expected: list[str]) -> None:
    assert instants(entry_of_row(row(**values), None)) == expected


def test_the_zone_of_the_app_counts_where_the_project_says_so() -> None:
    assert instants(entry_of_row(row(**CRONTAB), "Asia/Tokyo"), 1) == ["21 00:30"]


def test_all_options_of_a_row_are_in_its_definition() -> None:
    values = {
        "queue": "mail",
        "exchange": "mails",
        "routing_key": "mail.out",
        "priority": 0,
        "expire_seconds": 90,
        "headers": '{"tenant": "acme"}',
        "args": '[1, {"__type__": "uuid", "__value__": {"hex": "0"}}]',
        "kwargs": '{"x": null}',
    }
    found = read_definition(to_text(entry_of_row(row(**INTERVAL, **values), None).document)).call
    assert found.args == [1, {"__type__": "uuid", "__value__": {"hex": "0"}}], "kombu's own JSON stays as it is"
    assert found.kwargs == {"x": None}
    assert found.options == {
        "queue": "mail",
        "exchange": "mails",
        "routing_key": "mail.out",
        "priority": 0,
        "expires": 90,
        "headers": {"tenant": "acme", "periodic_task_name": "report", "celery_beat_task": True},
    }


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "the row must be one with exactly one of interval, crontab, solar, clocked"),
        ({**INTERVAL, **CRONTAB}, "the row must be one with exactly one of"),
        ({**INTERVAL, "args": "[1,"}, "args must be JSON like"),
        ({**INTERVAL, "args": "{}"}, "args must be JSON like"),
        ({**INTERVAL, "kwargs": "[" * 100_000}, "kwargs must be JSON like"),
        ({**INTERVAL, "headers": "[]"}, "headers must be JSON like"),
        ({**INTERVAL, "headers": '{"wheel": 1}'}, "options.headers.wheel must be a header other than"),
        ({**INTERVAL, "interval__every": 0}, "interval must be a millisecond or longer"),
        ({**INTERVAL, "interval__period": "fortnights"}, "interval must be a millisecond or longer"),
        ({**INTERVAL, "priority": 256}, "options.priority must be"),
        ({**INTERVAL, "task": ""}, "task must be"),
        ({**INTERVAL, "date_changed": None}, "the row cannot be read"),
        ({**CRONTAB, "crontab__hour": "25"}, "hour must be a crontab field of 0 to 23"),
        ({**CRONTAB, "crontab__month_of_year": "2", "crontab__day_of_month": "30"}, "day_of_month must be"),
        ({**CRONTAB, "zone": "Atlantis/Capital"}, "zone must be a time zone"),
        ({**SOLAR, "solar__event": "moonrise"}, "event must be one of"),
        ({**SOLAR, "solar__latitude": None}, "the row cannot be read"),
    ],
)
def test_a_row_that_cannot_be_read_is_broken_with_the_reason(values: dict[str, Any], reason: str) -> None:
    found = entry_of_row(row(**values), None)
    assert found.document["broken"].startswith(reason)
    to_text(found.document)


def test_a_row_has_ended_where_django_celery_beat_would_disable_it() -> None:
    assert is_over(row(**INTERVAL, one_off=True, total_run_count=1), NOON_MS)
    assert not is_over(row(**INTERVAL, total_run_count=1), NOON_MS)
    assert is_over(row(**INTERVAL, expires=NOON), NOON_MS)
    assert not is_over(row(**INTERVAL, expires=NOON + HOUR), NOON_MS)


def test_null_is_no_arguments_as_celery_reads_it() -> None:
    found = entry_of_row(row(**INTERVAL, args="null", kwargs="null"), None).document
    assert found.keys() == {"recurrence", "task", "options"}


def test_a_naive_time_is_read_as_utc() -> None:
    assert at_ms(NOON.replace(tzinfo=None)) == NOON_MS
