"""An import tells the tasks that a store has already from those that it does not have: none is dropped in silence.

Recurring schedules in a drain: a file has them with their pending occurrences; each instant runs once.
"""

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from celery_wheel.broker import shard_of
from celery_wheel.engine.recurring.materialise import occurrence_id
from celery_wheel.errors import FileUnusable
from celery_wheel.operations.drain import drain, import_, would_drain
from celery_wheel.operations.drain import file as drain_file
from celery_wheel.store import open_store
from celery_wheel.store.audit_model import Operator
from celery_wheel.store.model import HOUR_MS, GroupLimit, TallyKey
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import OCCURRENCE, RUN, SCHEDULE, SLOT, Run, Schedule
from tests.integration.drain.conftest import LeavingStack, now_ms
from tests.integration.drain.test_drain import drained, filled, lines
from tests.kit.holder import Holder, hour_of
from tests.kit.patience import patience, wait_until
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    same = hourly()  # of a minute: another one may be of the next minute
    stores.command("a", "create", {"same": same, "other": same})
    stores.command("b", "create", {"same": dict(reversed(same.items())), "other": {**same, "args": ["secret"]}})
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


MINUTE_MS = 60_000


def hourly() -> dict[str, Any]:
    """Return a schedule whose instants are half an hour from now: none comes while its test runs."""
    minute = (now_ms() // MINUTE_MS + 30) % 60
    return {"recurrence": {"kind": "recurrence", "spec": {"kind": "crontab", "minute": str(minute)}}, "task": "note"}


def ask(stack: LeavingStack, do: str, names: Any, **more: Any) -> dict[str, Any]:
    number = str(uuid.uuid4())
    named = {"definitions": names} if isinstance(names, dict) else {"names": names}
    payload = json.dumps({"do": do, **named, "id": number, "actor": "ann", "reason": "test", **more}).encode()
    with closing(open_store(stack.store, shards=None)) as store:
        store.put_command(0, "schedule", payload)
        with stack.service():
            wait_until(lambda: store.answer(number) is not None, "the command is answered")
        return store.answer(number) or {}


def schedules(store: str) -> dict[str, Schedule]:
    with closing(open_store(store, shards=None, create=False)) as opened:
        return {one.schedule.name: one.schedule for n in range(opened.shards) for one in opened.handover.schedules(n)}


def three(stack: LeavingStack) -> dict[str, Schedule]:
    """Make schedules: one with a pending occurrence, one that is paused, one that was changed."""
    definition = hourly()
    ask(stack, "create", dict.fromkeys(("hourly", "paused", "changed"), definition))
    ask(stack, "pause", ["paused"], reason="holidays")
    ask(stack, "update", {"changed": {**definition, "args": [1]}})
    with stack.opened() as store:
        occur(store, "hourly")
    return schedules(stack.store)


def occur(store: FullStore, name: str, task_id: str = "occurrence") -> None:
    """Make the next occurrence, as the scheduler does shortly before its time."""
    holder = Holder(store)
    [(_, schedule)] = store.schedules_named([name])
    instant_ms = schedule.next_ms or 0
    own = {"schedule": name, "id": schedule.id, "scheduled_for": instant_ms}
    headers = json.dumps({RUN: 1, "task": "note", "id": task_id, OCCURRENCE: own, SLOT: 2}).encode()
    envelope_id = occurrence_id(store, schedule, instant_ms)
    row = holder.row(instant_ms, envelope_id=envelope_id, task_id=task_id, task="note", headers=headers)
    row.accepted_ms = now_ms()
    schedule.next_ms, schedule.made, schedule.last_ms = instant_ms + HOUR_MS, schedule.made + 1, instant_ms
    runs = [Run(row.id, schedule.id, instant_ms)]
    holder.apply(rows=[row], runs=runs, schedules=[schedule], tally={hour_of(row): 1})
    store.release(0, holder.epoch)


@pytest.mark.slow
def test_a_file_takes_schedules_into_another_store_once(redis_stack: LeavingStack, other: str, file: Path) -> None:
    before = three(redis_stack)
    with redis_stack.opened() as store:
        assert would_drain(redis_stack.app, store).schedules_left == 3
    done = drained(redis_stack, file=file)
    assert (done.in_file, done.schedules, done.left, done.schedules_left) == (1, 3, 0, 0)
    assert schedules(redis_stack.store) == {}
    with redis_stack.opened() as store:
        detail = store.browse.schedule("hourly")
        assert [(one.what, one.actor) for one in detail.revisions] == [("deleted", "drain"), ("created", "ann")]
        assert [one.state for one in detail.runs] == ["moved"]
    redis_stack.change(wheel_store=other, wheel_shards=3)
    for _ in range(2):
        found = import_(redis_stack.app, file)
        assert (found.schedules + found.schedules_known, found.bad_count, found.missing) == (3, 0, 0)
    redis_stack.claim_broker()
    with redis_stack.service(), closing(open_store(other, shards=None, create=False)) as store:
        wait_until(lambda: len(schedules(other)) == 3, "all are accepted")
        wait_until(lambda: any(store.find(n, ["occurrence"]) for n in range(3)), "the pending occurrence is accepted")
    assert import_(redis_stack.app, file).schedules_known == 3
    after = schedules(other)
    for name, one in before.items():
        same = ("definition", "source", "next_ms", "made", "last_ms", "paused", "note", "broken", "since_ms")
        assert [getattr(after[name], field) for field in same] == [getattr(one, field) for field in same]
        assert after[name].revision == one.revision + 1
    with closing(open_store(other, shards=None, create=False)) as store:
        detail = store.browse.schedule("changed")
        assert [one.what for one in detail.revisions] == ["imported", "changed", "created"]
        [row] = [one for n in range(3) for one in store.find(n, ["occurrence"])]
        assert row.eta_ms == before["hourly"].last_ms
        headers = json.loads(row.parts().headers)
        assert (OCCURRENCE in headers, RUN in headers, SLOT in headers) == (True, False, False)


@pytest.mark.slow
def test_a_file_takes_limits_of_groups_along(redis_stack: LeavingStack, other: str, file: Path) -> None:
    limits = [GroupLimit(f"tenant:{n}", n, 100, 60_000, None, 9_000, "ann", 1) for n in range(1, 4)]
    with closing(open_store(redis_stack.store)) as store:
        holder = Holder(store)
        holder.apply(limits=limits)
        store.release(0, holder.epoch)
    assert drained(redis_stack, file=file).limits == 3
    with redis_stack.opened() as store:
        assert store.limits(0) == limits
    assert import_(redis_stack.app, file).limits_known == 3
    redis_stack.change(wheel_store=other, wheel_shards=3)
    assert import_(redis_stack.app, file).limits == 3
    redis_stack.claim_broker()
    with redis_stack.service(), closing(open_store(other, shards=None, create=False)) as store:
        wait_until(lambda: len(store.browse.own_limits()) == 3, "all are set")
        assert sorted(map(values, store.browse.own_limits())) == sorted(map(values, limits))
        for one in limits:
            [found] = store.limits(shard_of(one.group, "", 3), [one.group])
            assert found.actor == Operator.of_process().actor
        redis_stack.app.wheel.limits.set("tenant:1", weight=7)
    found = import_(redis_stack.app, file)
    assert (found.limits, found.limits_known, found.different) == (0, 2, 1)
    assert "group 'tenant:1' keeps its own limits" in found.lines[0].reason


def values(one: GroupLimit) -> tuple[Any, ...]:
    return one.group, one.concurrency, one.rate_count, one.rate_per_ms, one.max_runtime_ms


@pytest.mark.slow
def test_occurrences_of_another_store_are_told_from_its_own(redis_stack: LeavingStack, other: str, file: Path) -> None:
    """Both stores have a schedule of the same number and revision, with a pending occurrence of the same instant."""
    stack = redis_stack
    definition, found = hourly(), []
    for name, store in (("hourly", stack.store), ("another", other)):
        stack.change(wheel_store=store)
        open_store(store).close()
        stack.claim_broker()
        ask(stack, "create", {name: definition})
        with stack.opened() as opened:
            occur(opened, name)
            [schedule] = schedules(store).values()
            found.append((schedule.id, schedule.revision, schedule.last_ms))
            if name == "hourly":
                drain(stack.app, opened, file=file)
    assert found[0] == found[1]
    done = import_(stack.app, file)
    assert (done.put, done.known) == (1, 0)


def test_a_file_goes_back_into_its_own_store(redis_stack: LeavingStack, file: Path) -> None:
    before = three(redis_stack)
    drained(redis_stack, file=file)
    assert import_(redis_stack.app, file).schedules == 3
    with redis_stack.service():
        wait_until(lambda: len(schedules(redis_stack.store)) == 3, "all are accepted")
    assert schedules(redis_stack.store)["hourly"].next_ms == before["hourly"].next_ms
    with redis_stack.opened() as store:
        detail = store.browse.schedule("changed")
    changes = [(one.number, one.what) for one in detail.revisions]
    assert changes == [(4, "imported"), (3, "deleted"), (2, "changed"), (1, "created")]


@pytest.mark.slow
def test_a_drain_that_ends_before_it_removes_schedules_goes_on_and_keeps_what_has_changed(
    redis_stack: LeavingStack, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(redis_stack)
    with monkeypatch.context() as patched:
        patched.setattr(drain_file, "_remove_schedules", Mock(side_effect=RuntimeError("the end")))
        with pytest.raises(RuntimeError, match="the end"):
            drained(redis_stack, file=file)
    ask(redis_stack, "resume", ["paused"])
    done = drained(redis_stack, file=file)
    assert (done.resumed, done.schedules, done.schedules_left) == (True, 3, 1)
    assert set(schedules(redis_stack.store)) == {"paused"}
    with file.open("ab") as more:
        more.write(b"{}\n")
    with pytest.raises(FileUnusable, match="4 tasks, schedules and limits that its header names, got 5"):
        drained(redis_stack, file=file)


def test_a_drain_to_the_broker_leaves_schedules_in_the_store(redis_stack: LeavingStack) -> None:
    before = three(redis_stack)
    done = drained(redis_stack, to_broker=True)
    assert (done.moved, done.left, done.schedules, done.schedules_left) == (1, 0, 0, 3)
    assert schedules(redis_stack.store) == before


@pytest.mark.slow
def test_a_line_that_cannot_be_read_is_reported_and_the_others_go_on(redis_stack: LeavingStack, file: Path) -> None:
    filled(redis_stack, 1)
    three(redis_stack)
    drained(redis_stack, file=file)
    whole = file.read_bytes().splitlines(keepends=True)
    assert len(lines(file)) == 1 + 2 + 3
    broken = [b'{"schedule": {"name": 7}}\n', whole[-1], b'{"schedule": 1']
    file.write_bytes(b"".join([*whole[:3], *broken]))
    found = import_(redis_stack.app, file)
    assert (found.put, found.schedules, found.bad_count, found.missing) == (2, 1, 2, 0)
    assert [one.number for one in found.lines] == [4, 6]


@pytest.mark.slow
def test_every_instant_runs_once_though_the_wheel_moves(redis_stack: LeavingStack, other: str, file: Path) -> None:
    redis_stack.beat()
    wheel = redis_stack.app.wheel
    wait_until(lambda: redis_stack.count_pending() >= 0, "there is a store")
    wheel.pause(queue="celery", timeout=patience())  # the scheduler has made the store and may hold no shard yet
    wheel.schedules.create("each second", 1, "note", ["tick"], catch_up="all", catch_up_window=3_600)
    wait_until(lambda: redis_stack.count_pending() >= 3, "occurrences wait behind the pause")
    redis_stack["beat"].terminate()
    wheel.close()
    done = drained(redis_stack, file=file)
    assert (done.left, done.schedules_left) == (0, 0)
    assert done.in_file >= 3
    redis_stack.change(wheel_store=other)
    import_(redis_stack.app, file)
    import_(redis_stack.app, file)
    redis_stack.claim_broker()
    redis_stack.beat()
    redis_stack.worker()

    def each_once() -> bool:
        """Whether they ran each once, without a gap: those that were missed meanwhile have a lane of their own."""
        found = sorted(instants(redis_stack))
        return found == list(range(found[0], found[0] + 1_000 * len(found), 1_000))

    wait_until(lambda: len(instants(redis_stack)) >= done.in_file + 5 and each_once(), "each instant runs once")


def instants(stack: LeavingStack) -> list[int]:
    return [note["headers"][OCCURRENCE]["scheduled_for"] for note in stack.notes()["tick"]]
