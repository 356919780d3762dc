"""The doctor names broken schedules, and schedules whose instants are not made."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_wheel.operations.doctor import Finding, Grade, schedules
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from tests.kit.holder import Holder
from tests.kit.schedules import create


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FullStore]:
    with closing(open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=1)) as found:
        yield found


def now_ms() -> int:
    return int(time.time() * 1_000)


class Loader:
    """Imports the modules of tasks: here, it registers one task."""

    def __init__(self, tasks: dict[str, object]) -> None:
        self.tasks = tasks

    def import_default_modules(self) -> None:
        self.tasks["app.known"] = object()


def found(store: FullStore, live: bool = True, loader: Any = None, **clashes: list[str]) -> list[Finding]:
    tasks: dict[str, object] = {}
    app = SimpleNamespace(tasks=tasks, loader=loader or Loader(tasks))
    snapshot = {"sources": {source: {"clashes": names} for source, names in clashes.items()}}
    shards = [SimpleNamespace(live=live, snapshot=snapshot)]
    conf = SimpleNamespace(mask=["password"])
    site: Any = SimpleNamespace(store=store, now_ms=now_ms, shards=shards, app=app, conf=conf)
    return list(schedules.check(site))


def test_a_store_without_schedules_has_no_findings(store: FullStore) -> None:
    assert found(store) == []


def test_schedules_are_counted_and_broken_ones_named_with_their_reason(store: FullStore) -> None:
    holder = Holder(store)
    create(holder, "a", "b", next_ms=now_ms() + 60_000)
    create(holder, "paused", next_ms=None, paused=True, note="holidays")
    create(holder, "base", next_ms=None, note="its own is_due")
    assert {one.grade for one in found(store)} == {Grade.OK}
    create(holder, *(f"broken {n:02}" for n in range(12)), next_ms=None, broken=True, note="no task")
    counted, base, *broken, more = found(store)
    assert counted.text.startswith("16 schedules, 1 paused; the next instant is 2")
    assert base.text.startswith("1 entry of beat_schedule")
    assert [one.grade for one in broken] == [Grade.WARNING] * 10
    assert broken[0].text == "broken 00 is broken, and does not run: no task"
    assert broken[0].remedy.endswith("wheel schedules resume 'broken 00'")
    assert more.text == "2 more schedules are broken"


def test_entries_whose_names_are_taken_are_named_while_their_scheduler_runs(store: FullStore) -> None:
    create(Holder(store), "tick", next_ms=now_ms() + 60_000)
    [_, clash] = found(store, beat=["tick"], code=[])
    assert clash.grade == Grade.WARNING
    assert clash.text == "1 entry of beat cannot run, since another source has a schedule of that name: tick"
    [_, clash] = found(store, beat=[f"n{n:02}" for n in range(12)])
    assert clash.text.startswith("12 entries of beat cannot run")
    assert clash.text.endswith("n08, n09 and 2 more")
    assert len(found(store, live=False, beat=["tick"])) == 1


def test_an_instant_that_is_not_made_is_a_warning_while_schedulers_run(store: FullStore) -> None:
    create(Holder(store), "late", next_ms=now_ms() - 3_600_000)
    assert [one.grade for one in found(store)] == [Grade.OK, Grade.WARNING]
    assert [one.grade for one in found(store, live=False)] == [Grade.OK]


def test_a_task_that_the_app_does_not_have_is_a_warning(store: FullStore) -> None:
    known, unknown = '{"task": "app.known"}', '{"task": "app.unknown"}'
    create(Holder(store), "a", "b", next_ms=now_ms() + 60_000, definition=unknown)
    create(Holder(store), "c", next_ms=now_ms() + 60_000, definition=known)
    create(Holder(store), "d", next_ms=now_ms() + 60_000, definition='{"task": "billing.charge"}')
    _, one, other = found(store)
    assert one.grade is Grade.WARNING
    words = "the app does not have the task app.unknown of 2 schedules (a, …): it is sent by its name"
    assert one.text.startswith(words)
    assert other.text.startswith("the app does not have the task billing.charge of 1 schedule (d): ")


def test_an_app_whose_tasks_cannot_be_imported_is_a_warning(store: FullStore) -> None:
    def fail() -> None:
        raise ImportError("no module named numpy")

    create(Holder(store), "a", next_ms=now_ms() + 60_000)
    _, one = found(store, loader=SimpleNamespace(import_default_modules=fail))
    assert "cannot be imported, so the tasks of schedules are not checked: ImportError('no module" in one.text
