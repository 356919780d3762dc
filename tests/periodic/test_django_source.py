"""The tables of django-celery-beat: each way to edit them is noticed, and no neighbour of an edited row is read."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models.sql.compiler import SQLCompiler
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, PeriodicTask, PeriodicTasks, SolarSchedule

from celery_wheel.scheduler.sources import EntryChanges, django_source
from celery_wheel.scheduler.sources.django_rows import PAGE, TaskReader
from celery_wheel.scheduler.sources.django_source import FULL_READ_S
from tests.periodic.conftest import Make, Tables, age, edit

#: Tasks on two pages.
MANY = 3_000


def test_the_first_look_reads_every_enabled_task_of_all_kinds(tables: Tables, task: Make, nine: Any) -> None:
    soon = timezone.now() + timedelta(hours=1)
    task("interval")
    task("crontab", crontab=nine)
    task("solar", solar=SolarSchedule.objects.create(event="sunrise", latitude="48.85", longitude="2.35"))
    task("clocked", clocked=ClockedSchedule.objects.create(clocked_time=soon), one_off=True)
    task("disabled", enabled=False)
    changes = tables.read()
    assert changes.all_names == {"interval", "crontab", "solar", "clocked"}
    kinds = {name: one.document["recurrence"]["spec"]["kind"] for name, one in changes.entries.items()}
    assert kinds == {"interval": "interval", "crontab": "crontab", "solar": "solar", "clocked": "instants"}
    assert changes.entries["crontab"].document["recurrence"]["zone"] == "Europe/Paris"


def test_nothing_is_read_while_the_marker_is_as_it_was(tables: Tables, task: Make) -> None:
    task("a")
    tables.read()
    with CaptureQueriesContext(connection) as queries:
        assert tables.source.read() is None
    assert len(queries) == 1
    assert "periodictasks" in queries[0]["sql"]


@pytest.fixture
def count_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    own, count = SQLCompiler.results_iter, [0]

    def results_iter(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for row in own(self, *args, **kwargs):
            count[0] += 1
            yield row

    monkeypatch.setattr(SQLCompiler, "results_iter", results_iter)
    return lambda: count[0]


@pytest.fixture
def three(tables: Tables, task: Make, nine: Any) -> Tables:
    task("a", crontab=nine)
    task("b")
    task("c")
    age()
    tables.read()
    return tables


def swap() -> None:
    for name, to in (("a", "x"), ("b", "a"), ("x", "b")):
        edit(name, name=to)


def ten() -> None:
    found = CrontabSchedule.objects.get()
    found.hour = "10"
    found.save()


@pytest.mark.parametrize(
    ("change", "entries", "gone"),
    [
        (lambda: edit("b", kwargs='{"x": 1}'), {"b": lambda one: one["kwargs"] == {"x": 1}}, []),
        (lambda: edit("b", name="z"), {"z": bool}, ["b"]),
        (lambda: CrontabSchedule.objects.get().delete(), {}, ["a"]),
        (lambda: edit("b", enabled=False), {}, ["b"]),
        (lambda: edit("b", one_off=True, total_run_count=1), {}, ["b"]),
        (swap, {"a": bool, "b": lambda one: one["recurrence"]["spec"]["kind"] == "crontab"}, []),
        (ten, {"a": lambda one: one["recurrence"]["spec"]["hour"] == "10"}, []),
    ],
    ids=["saved", "renamed", "schedule deleted", "disabled", "run once", "names swapped", "schedule edited"],
)
def test_a_change_is_read_alone(
    three: Tables, change: Callable[[], object], entries: dict[str, Callable[[Any], bool]], gone: list[str]
) -> None:
    change()
    changes = three.read()
    assert (sorted(changes.entries), changes.gone) == (sorted(entries), gone)
    assert all(is_so(changes.entries[name].document) for name, is_so in entries.items())
    if gone == ["b"] and (found := PeriodicTask.objects.filter(name="b").first()):
        assert (found.enabled, found.total_run_count, found.last_run_at) == (False, 0, None)
        edit("b", enabled=True)
        assert list(three.read().entries) == ["b"]


def test_the_actions_of_the_admin_are_noticed(three: Tables, admin_client: Client) -> None:
    ids = list(PeriodicTask.objects.filter(name__in="ab").values_list("pk", flat=True))
    url = "/admin/django_celery_beat/periodictask/"
    for action, entries, gone in (("disable_tasks", [], ["a", "b"]), ("toggle_tasks", ["a", "b"], [])):
        admin_client.post(url, {"action": action, "_selected_action": ids})
        changes = three.read()
        assert (sorted(changes.entries), sorted(changes.gone)) == (entries, gone), action


def test_an_update_that_only_the_marker_shows_is_found_by_reading_all(three: Tables) -> None:
    PeriodicTask.objects.filter(name="b").update(queue="mail")
    PeriodicTasks.update_changed()
    assert three.source.read() is None, "the row of a save may follow its marker"
    changes = three.read()
    assert changes.entries["b"].document["options"]["queue"] == "mail"


def test_a_change_that_hides_behind_another_is_found_within_five_minutes(three: Tables) -> None:
    PeriodicTask.objects.filter(name="b").update(queue="mail")
    edit("c", queue="other")
    assert list(three.read().entries) == ["c"]
    three.monotonic_s = FULL_READ_S
    assert three.read().entries["b"].document["options"]["queue"] == "mail"


def test_an_update_that_moves_no_marker_is_found_within_five_minutes(three: Tables) -> None:
    PeriodicTask.objects.filter(name="b").update(queue="mail")
    PeriodicTask.objects.filter(name="c").update(enabled=False)
    CrontabSchedule.objects.update(hour="10")
    three.monotonic_s = FULL_READ_S - 1
    assert not three.read().entries
    three.monotonic_s = FULL_READ_S
    changes = three.read()
    assert changes.entries["b"].document["options"]["queue"] == "mail"
    assert changes.entries["a"].document["recurrence"]["spec"]["hour"] == "10"
    assert changes.gone == ["c"]


def test_a_row_that_cannot_be_read_is_broken_and_harms_no_other(three: Tables, task: Make) -> None:
    task("d")
    edit("b", args="[1,")
    assert three.read().entries["b"].document["broken"].startswith("args must be JSON")
    with connection.cursor() as cursor:  # past every check of Django
        cursor.execute("UPDATE django_celery_beat_crontabschedule SET timezone = 'Atlantis/Capital'")
        cursor.execute("UPDATE django_celery_beat_periodictask SET start_time = '2030-13-45 00:00:00' WHERE name = 'c'")
        cursor.execute("UPDATE django_celery_beat_periodictask SET date_changed = 'soon' WHERE name = 'd'")
    three.source.reset()
    changes = three.read()
    assert changes.entries["a"].document["broken"].startswith("zone must be a time zone")
    for name in "cd":
        assert changes.entries[name].document["broken"].startswith("the row cannot be read")
    assert sorted(changes.entries) == ["a", "b", "c", "d"]


def test_a_task_that_expires_is_disabled_as_django_celery_beat_does(three: Tables) -> None:
    edit("b", expires=timezone.now() + timedelta(minutes=5))
    assert list(three.read().entries) == ["b"]
    three.ahead_ms = 301_000
    assert three.read().gone == ["b"]
    assert not PeriodicTask.objects.get(name="b").enabled


@pytest.fixture
def many(tables: Tables, interval: Any, nine: Any) -> Tables:
    plain = {"task": "site.nothing", "interval": interval}
    PeriodicTask.objects.bulk_create([PeriodicTask(name=f"n{n}", **plain) for n in range(MANY)])
    PeriodicTask.objects.create(name="a", task="site.nothing", crontab=nine)
    PeriodicTasks.update_changed()
    age()
    assert len(tables.read().entries) == MANY + 1
    return tables


def shared_zone() -> None:
    found = CrontabSchedule.objects.get()
    found.timezone = "Asia/Tokyo"
    found.save()


@pytest.mark.parametrize(
    ("change", "entries", "gone", "queries", "rows"),
    [
        (lambda: None, [], [], 1, 1),
        (lambda: edit("n7", queue="mail"), ["n7"], [], 9, 5),
        (lambda: PeriodicTask.objects.create(name="new", task="t", interval_id=1), ["new"], [], 9, 5),
        (lambda: PeriodicTask.objects.get(name="n7").delete(), [], ["n7"], 8, MANY + 3),
        (shared_zone, ["a"], [], 10, 5),
    ],
    ids=["nothing", "saved", "new", "deleted", "zone"],
)
def test_a_look_reads_what_has_changed_and_no_neighbour(
    many: Tables,
    count_rows: Callable[[], int],
    change: Callable[[], object],
    entries: list[str],
    gone: list[str],
    queries: int,
    rows: int,
) -> None:
    change()
    before = count_rows()
    with CaptureQueriesContext(connection) as seen:
        changes = many.source.read() or EntryChanges()
    assert (list(changes.entries), changes.gone) == (entries, gone)
    assert (len(seen), count_rows() - before) == (queries, rows), [one["sql"] for one in seen]


def test_all_tasks_are_read_page_by_page_in_five_minutes(many: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    own, found = TaskReader.marks, list[int]()

    def marks(reader: TaskReader, query: Any) -> dict[int, int]:
        page = own(reader, query)
        found.append(len(page))
        return page

    monkeypatch.setattr(TaskReader, "marks", marks)
    for second in range(1, int(FULL_READ_S) + 1):
        many.monotonic_s = float(second)
        assert many.source.read() is None, "a row that is as it was is no entry"
    assert found == [2 * PAGE, MANY + 1 - 2 * PAGE]


def test_the_first_lap_is_read_at_once_and_an_edit_goes_before_it(many: Tables) -> None:
    many.source.reset()
    first = many.source.read()
    assert first is not None
    assert (len(first.all_names or ()), first.entries) == (MANY + 1, {})
    many.source.followed()
    pages = [many.source.read()]
    many.source.followed()
    edit("n2999", queue="mail")
    while many.source.has_more:
        pages.append(many.source.read())
        many.source.followed()
    [first_page, with_edit, *_] = found = [list(one.entries) for one in pages if one is not None]
    assert first_page == [f"n{n}" for n in range(PAGE)]
    assert with_edit[0] == "n2999"
    assert sum(map(len, found)) == MANY + 1, "no row is an entry twice"
    assert many.source.is_followed


def test_a_look_that_was_not_followed_is_read_again(three: Tables) -> None:
    edit("a", queue="mail")
    edit("b", name="z")
    for _ in range(3):
        changes = three.source.read()
        assert changes is not None
        assert (sorted(changes.entries), changes.gone) == (["a", "z"], ["b"])
    three.source.followed()
    assert three.source.read() is None


def test_an_edit_has_the_instant_at_which_it_was_seen(three: Tables) -> None:
    ten()
    seen_ms = three.now_ms()
    for _ in range(3):
        changes = three.source.read()
        assert changes is not None
        edited_ms = changes.entries["a"].edited_ms
        assert edited_ms is not None
        assert seen_ms <= edited_ms < seen_ms + 30_000, "it is followed a minute later"
        three.ahead_ms += 60_000


def test_an_edit_that_a_takeover_finds_has_the_instant_of_the_takeover(three: Tables) -> None:
    three.source.reset()
    seen_ms = three.now_ms()
    three.source.read()
    three.source.followed()
    three.ahead_ms += 60_000
    edited_ms = [one.edited_ms for one in three.read().entries.values()]
    assert len(edited_ms) == 3
    assert all(one is not None and seen_ms <= one < seen_ms + 30_000 for one in edited_ms)


def test_an_expiry_keeps_the_instant_of_an_edit(three: Tables) -> None:
    edit("a", expires=timezone.now() + timedelta(seconds=30))
    three.read()
    edit("a", expires=timezone.now() + timedelta(days=1))
    seen_ms = three.now_ms()
    three.source.read()  # it is not followed
    three.ahead_ms += 60_000
    changes = three.source.read()
    assert changes is not None
    assert seen_ms <= (changes.entries["a"].edited_ms or 0) < seen_ms + 30_000


def test_names_that_are_swapped_over_two_pages_are_not_deleted_twice(many: Tables) -> None:
    store = {f"n{n}" for n in range(MANY)} | {"a"}
    many.source.reset()
    for _ in range(2):
        many.source.read()
        many.source.followed()
    PeriodicTask.objects.filter(name="n0").update(name="x")
    PeriodicTask.objects.filter(name="n2999").update(name="n0")
    PeriodicTask.objects.filter(name="x").update(name="n2999")
    many.monotonic_s = FULL_READ_S
    many.source._hurry()
    while many.source.has_more:
        changes = many.source.read() or EntryChanges()
        store = (store - set(changes.gone)) | changes.entries.keys()
        many.source.followed()
    assert store == {f"n{n}" for n in range(MANY)} | {"a"}


def test_a_change_of_very_many_is_found_by_a_lap(many: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django_source, "MANY", 10)
    PeriodicTask.objects.filter(name__startswith="n1").update(queue="mail", date_changed=timezone.now())
    PeriodicTasks.update_changed()
    seen_ms = many.now_ms()
    first = many.source.read()
    assert first is not None
    many.ahead_ms = 60_000
    changes = many.read()
    assert all(seen_ms <= (one.edited_ms or 0) < seen_ms + 30_000 for one in changes.entries.values())
    assert len({*first.entries, *changes.entries}) == sum(f"n{n}".startswith("n1") for n in range(MANY))


def test_reading_a_task_once_more_remembers_no_more(three: Tables) -> None:
    edit("b", expires=timezone.now() + timedelta(days=5))
    for turn in range(9):
        three.monotonic_s = (turn + 1) * FULL_READ_S
        three.read()
    assert len(three.source._expiring) == 1


def test_a_task_that_expires_and_is_gone_is_forgotten(three: Tables) -> None:
    later = timezone.now() + timedelta(days=9_999)
    for name in "abc":
        edit(name, expires=later)
    three.read()
    edit("a", expires=None)
    PeriodicTask.objects.get(name="b").delete()
    edit("c", expires=later + timedelta(days=1))
    for turn in range(2):
        three.monotonic_s = (turn + 1) * FULL_READ_S
        three.read()
    assert len(three.source._expires) == len(three.source._expiring) == 1


def test_the_admin_of_django_celery_beat_edits_as_ever(three: Tables, client: Client) -> None:
    User.objects.create_superuser("anna", password="anna")  # noqa: S106
    client.login(username="anna", password="anna")  # noqa: S106
    found = PeriodicTask.objects.get(name="b")
    fields = {"name": "b", "task": "site.nothing", "args": "[5]", "kwargs": "{}", "headers": "{}", "enabled": "on"}
    answer = client.post(
        f"/admin/django_celery_beat/periodictask/{found.pk}/change/", {**fields, "interval": found.interval_id}
    )
    assert answer.status_code == 302, answer.content[:2_000]
    assert three.read().entries["b"].document["args"] == [5]
