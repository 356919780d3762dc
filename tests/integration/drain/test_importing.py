"""An import tells the tasks that a store has already from those that it does not have: none is dropped in silence."""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_wheel.operations.drain import drain, import_
from celery_wheel.store import open_store
from celery_wheel.store.model import HOUR_MS, TallyKey
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import SCHEDULE
from tests.integration.drain.conftest import LeavingStack, now_ms
from tests.integration.drain.test_drain_schedules import hourly, occur, schedules
from tests.kit.holder import Holder
from tests.kit.patience import wait_until
from tests.kit.servers.postgres import PostgresServer

ETA_MS = now_ms() + 5 * HOUR_MS
IDS = [str(uuid.UUID(int=n << 80 | 7 << 76)) for n in range(1, 4)]


class Stores:
    """Stores of one project by their names, each with a wheel queue of its own on the same Redis."""

    def __init__(self, stack: LeavingStack, url: Callable[[str], str]) -> None:
        self._stack = stack
        self._url = url
        self.folder = stack.folder

    def use(self, name: str) -> str:
        self._stack.change(wheel_store=self._url(name), wheel_namespace=name)
        return self._url(name)

    def open(self, name: str) -> FullStore:
        return open_store(self.use(name), shards=1)

    def fill(self, name: str, task_ids: Sequence[str], **parts: Any) -> None:
        """Accept a pending task for each id; the first has the first of IDS as its envelope's id, and so on."""
        with closing(self.open(name)) as store:
            holder = Holder(store)
            own = {"task": "note", "body": b'[["secret"], {}, {}]', "headers": b'{"task": "note"}', **parts}
            due_ms, ids = own.pop("eta_ms", ETA_MS), zip(task_ids, IDS, strict=False)
            rows = [holder.row(due_ms, task_id=task_id, envelope_id=id_, **own) for task_id, id_ in ids]
            rows = [replace(row, accepted_ms=now_ms()) for row in rows]
            holder.apply(rows=rows, tally={TallyKey(due_ms // HOUR_MS, "celery", "note"): len(rows)})
            store.release(0, holder.epoch)

    def drain(self, name: str, file: str, **options: Any) -> Path:
        with closing(self.open(name)) as store:
            done = drain(self._stack.app, store, file=self.folder / file, **options)
        assert (done.left, done.schedules_left) == (0, 0)
        return self.folder / file

    def import_(self, name: str, file: Path, **options: Any) -> dict[str, Any]:
        self.use(name)
        found = import_(self._stack.app, file, **options)
        self.lines = [one.reason for one in found.lines]
        names = ("put", "known", "renamed", "different", "left", "skipped", "schedules", "schedules_known")
        assert found.absent == found.different + found.left + found.skipped
        return {one: getattr(found, one) for one in names if getattr(found, one)}

    def accept(self, name: str) -> None:
        with closing(self.open(name)) as store, self._stack.service():
            wait_until(lambda: not store.read_inbox(0, 1), "the inbox is empty")

    def pending(self, name: str) -> list[str]:
        with closing(self.open(name)) as store:
            return sorted(one.message.task_id for one in store.handover.pending(0))

    def command(self, name: str, do: str, names: Any) -> None:
        named = {"definitions": names} if isinstance(names, dict) else {"names": names}
        with closing(self.open(name)) as store:
            store.put_command(0, SCHEDULE, json.dumps({"do": do, **named, "actor": "ann", "reason": ""}).encode())
        self.accept(name)


def of_sqlite(stack: LeavingStack) -> Stores:
    return Stores(stack, lambda name: f"sqlite:///{stack.folder}/{name}.sqlite3")


@pytest.fixture(params=["sqlite", "postgresql"])
def stores(request: pytest.FixtureRequest, redis_stack: LeavingStack) -> Iterator[Stores]:
    urls: dict[str, str] = {}
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        yield Stores(redis_stack, lambda name: urls.setdefault(name, server.new_database()))
    else:
        yield of_sqlite(redis_stack)


def test_tasks_of_another_store_with_the_same_envelope_ids_are_imported_under_ids_of_their_own(stores: Stores) -> None:
    stores.fill("a", ["a1", "a2", "a3"])
    stores.fill("b", ["b1", "b2"])
    file = stores.drain("a", "a.jsonl")
    assert stores.import_("b", file) == {"put": 3, "renamed": 2}
    assert stores.import_("b", file) == {"put": 3, "renamed": 2}, "no scheduler has accepted them yet"
    stores.accept("b")
    assert stores.pending("b") == ["a1", "a2", "a3", "b1", "b2"]
    assert stores.import_("b", file) == {"known": 3}


def test_two_files_with_the_same_envelope_ids_wait_in_one_inbox_and_are_accepted(stores: Stores) -> None:
    files = []
    for name in ("a", "b"):
        stores.fill(name, [f"{name}1", f"{name}2"])
        files.append(stores.drain(name, f"{name}.jsonl"))
    for _ in range(2):
        assert [stores.import_("c", file) for file in files] == [{"put": 2}, {"put": 2}]
    stores.accept("c")
    assert stores.pending("c") == ["a1", "a2", "b1", "b2"]
    assert [stores.import_("c", file) for file in files] == [{"known": 2}, {"known": 2}]


def test_pending_occurrences_of_two_fresh_stores_are_all_there(stores: Stores) -> None:
    """Both stores number their first schedule alike."""
    for name in ("a", "b"):
        stores.command(name, "create", {f"of {name}": hourly()})
        with closing(stores.open(name)) as store:
            occur(store, f"of {name}", task_id=f"{name}1")
    file = stores.drain("a", "a.jsonl")
    found = stores.import_("b", file)
    assert (found.pop("put"), found.pop("schedules")) == (1, 1)
    assert found in ({}, {"renamed": 1})
    stores.accept("b")
    assert stores.pending("b") == ["a1", "b1"]
    assert set(schedules(stores.use("b"))) == {"of a", "of b"}


def test_a_task_that_the_store_has_otherwise_is_reported_without_its_arguments(stores: Stores) -> None:
    stores.fill("a", ["t1", "t2", "t3"])
    file = stores.drain("a", "a.jsonl")
    stores.fill("b", ["t1"])
    assert stores.import_("b", file) == {"known": 1, "put": 2}
    stores.fill("c", ["t1", "t2"], eta_ms=ETA_MS + 1, body=b'[["another secret"], {}, {}]')
    assert stores.import_("c", file) == {"different": 2, "put": 1}
    assert stores.lines[0] == "task 't1' stays as it is in the store, which has another instant, arguments"
    assert "secret" not in "".join(stores.lines)


def test_tasks_come_back_into_the_store_from_which_another_store_had_them(stores: Stores) -> None:
    stores.fill("a", ["t1", "t2"])
    there = stores.drain("a", "there.jsonl")
    assert stores.import_("b", there) == {"put": 2}
    stores.accept("b")
    back = stores.drain("b", "back.jsonl")
    for _ in range(2):
        assert stores.import_("a", back) == {"put": 2}
    stores.accept("a")
    assert stores.pending("a") == ["t1", "t2"]
    assert stores.import_("a", back) == {"known": 2}
    # The tasks that store b got from the first file are in the second one, and so in store a.
    assert stores.import_("b", there) == {"left": 2}
    assert "back.jsonl" in stores.lines[0]


def test_the_file_of_a_copy_adds_the_tasks_that_a_store_does_not_have(
    redis_stack: LeavingStack, tmp_path: Path
) -> None:
    stores = of_sqlite(redis_stack)
    stores.fill("a", ["t1", "t2"])
    shutil.copy(tmp_path / "a.sqlite3", tmp_path / "copy.sqlite3")
    with closing(stores.open("a")) as store:
        [first, _] = store.handover.pending(0)
        holder = Holder(store)
        one = next(row for row in store.find(0, ["t1"]))
        holder.apply(moves=[holder.stop(one)], outcomes=[holder.outcome(first.id)])
        store.release(0, holder.epoch)
    file = stores.drain("copy", "copy.jsonl")
    assert stores.import_("a", file) == {"known": 2}, "one is cancelled, one is pending"
    assert stores.pending("a") == ["t2"]


def test_a_schedule_that_the_store_has_otherwise_is_reported(stores: Stores) -> None:
    stores.command("a", "create", {"same": hourly(), "other": hourly()})
    stores.command("b", "create", {"same": dict(reversed(hourly().items())), "other": {**hourly(), "args": ["secret"]}})
    file = stores.drain("a", "a.jsonl")
    assert stores.import_("b", file) == {"schedules_known": 1, "different": 1}
    assert stores.lines == ["schedule 'other' stays as it is in the store, which has another definition"]


def test_a_schedule_of_a_second_file_that_comes_into_the_inbox_before_the_first_is_accepted_is_named_in_the_log(
    redis_stack: LeavingStack, caplog: pytest.LogCaptureFixture
) -> None:
    stores, same = of_sqlite(redis_stack), hourly()
    for name in ("a", "b"):
        stores.command(name, "create", {"same": same, "other": {**same, "args": [name]}})
        file = stores.drain(name, f"{name}.jsonl")
        assert stores.import_("c", file) == {"schedules": 2}
    stores.accept("c")
    assert json.loads(schedules(stores.use("c"))["other"].definition)["args"] == ["a"]
    assert [vars(one)["schedule"] for one in caplog.records if "was not imported" in one.getMessage()] == ["other"]


def test_unreadable_bytes_that_the_store_keeps_already_are_reported(stores: Stores) -> None:
    with closing(stores.open("a")) as store:
        store.put_inbox(0, [("message", b"no message")])
    stores.accept("a")
    file = stores.drain("a", "a.jsonl", include=["rejected"])
    assert stores.import_("a", file) == {"skipped": 1}
    assert stores.import_("a", file, include=["rejected"]) == {"left": 1}
    assert stores.import_("b", file, include=["rejected"]) == {"put": 1}
    stores.accept("b")
    assert stores.import_("b", file, include=["rejected"]) == {"known": 1}


def test_the_command_ends_with_3_where_the_store_does_not_have_all_of_the_file(redis_stack: LeavingStack) -> None:
    stores = of_sqlite(redis_stack)
    stores.fill("a", ["t1", "t2", "t3"])
    file = stores.drain("a", "a.jsonl")
    stores.fill("b", ["b1"])
    code, said = redis_stack.celery("wheel", "import", str(file)).end()
    assert code == 0
    assert said.splitlines()[:2] == [
        "3 tasks in the inbox, 0 in the store before, the same",
        "1 of these tasks have the ids of other tasks here, and got ids of their own",
    ]
    stores.fill("c", ["t1"], routing_key="mail", queue="mail")
    code, said = redis_stack.celery("wheel", "import", str(file)).end()
    assert code == 3
    assert "not imported: 1 are here otherwise than in the file" in said
    assert "line 2: task 't1' stays as it is in the store, which has another routing_key, queue" in said
    code, said = redis_stack.celery("wheel", "import", str(file), "--json").end()
    assert (code, json.loads(said)["absent"], json.loads(said)["different"]) == (3, 1, 1)
