"""The node, its commands and its broker; revokes in the store, scans for stamps, and the state of revoked tasks."""

import bz2
import gc
import json
import logging
import lzma
import os
import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import celery
import pytest
from celery import signals
from celery.backends import cache
from celery.worker.control import Panel
from kombu import compression
from kombu.exceptions import EncodeError

from celery_wheel import Celery
from celery_wheel.engine.state import tombstones
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.errors import StoreError
from celery_wheel.scheduler.remote_control import SchedulerView, inspection, node, revocation
from celery_wheel.scheduler.remote_control.node import Commands
from celery_wheel.scheduler.remote_control.revocation import RevokeListener
from celery_wheel.scheduler.remote_control.revoked_state import AWAY_AFTER, MAX_OPENED, SUSPECTS, TRIES, RevokedState
from celery_wheel.scheduler.remote_control.revoked_state import read_request as read
from celery_wheel.scheduler.service import node_name
from celery_wheel.store import open_store
from celery_wheel.store.audit_model import AuditCriteria
from celery_wheel.store.model import Row
from celery_wheel.store.ports.pages import MessageHead, Task
from celery_wheel.store.sql.store import SqlStore
from celery_wheel.values.mask import NO_MASK, Mask
from tests.kit.chunks import make_row
from tests.kit.holder import NOW, Holder
from tests.kit.manual import page
from tests.kit.new_stores import new_file
from tests.kit.patience import wait_until
from tests.kit.servers.redis import RedisServer


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = open_store(new_file(tmp_path / "wheel.sqlite3", shards=2), shards=2)
    yield found
    found.close()


@pytest.fixture
def revokes(store: SqlStore) -> RevokeListener:
    return RevokeListener(SchedulerView("wheel@h", store, lambda: [0], RevokedStamps()))


def commands(store: SqlStore, shard: int) -> list[dict[str, Any]]:
    return [json.loads(item.payload) for item in store.read_inbox(shard, 100)]


def revoked(store: SqlStore, shard: int) -> list[list[str]]:
    return [command["task_ids"] for command in commands(store, shard)]


@pytest.fixture
def back(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the store fail, until the returned function is called."""

    put = store.put_inboxes
    monkeypatch.setattr(store, "put_inboxes", mock.Mock(side_effect=StoreError("away")))
    return lambda: monkeypatch.setattr(store, "put_inboxes", put)


def test_a_revoke_goes_to_every_shard_held_or_not(store: SqlStore, revokes: RevokeListener) -> None:
    assert revokes.revoke(["b", "a", "b"]) == (["a", "b"], [])
    for shard in (0, 1):
        [command] = commands(store, shard)
        assert (command["task_ids"], command["for_good"]) == (["a", "b"], True)


def test_a_revoke_is_one_request_of_the_audit_log(store: SqlStore, revokes: RevokeListener) -> None:
    revokes.revoke(["a"])
    first, second = (commands(store, shard)[0]["audit"] for shard in (0, 1))
    assert (first["origin"], first["whole"], second["whole"]) == ("control", True, False)
    assert first["request"] == second["request"]


def test_a_revoke_by_stamps_is_recorded_without_their_values(store: SqlStore) -> None:
    revokes = RevokeListener(SchedulerView("wheel@h", store, list, RevokedStamps()))
    revokes.revoke_stamps({"customer": "anna"})
    revokes.tend()
    revokes.tend()
    revokes.stop()
    (one,) = store.browse.audit(AuditCriteria()).items
    assert (one.action, one.origin, one.details) == ("revoke_stamps", "control", {"stamps": ["customer"]})


def test_a_revoke_by_stamps_that_the_audit_log_will_lack_is_answered_by_an_error_and_counts(
    store: SqlStore, revokes: RevokeListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revocation, "MAX_UNRECORDED", 2)
    for name in ("a", "b"):
        revokes.revoke_stamps({name: "1"})
    with pytest.raises(StoreError, match="wheel@h revokes them, but the audit log will lack it: 2 of its entries wait"):
        revokes.revoke_stamps({"c": "1"})
    assert revokes._view.stamps.match(b'{"stamps": {"c": ["1"]}}')
    monkeypatch.setattr(revokes._view.store.maintenance, "record", mock.Mock(side_effect=StoreError("away")))
    revokes.close()
    revokes.stop()
    assert "the audit log lacks 2 revokes by stamps" in caplog.text


def test_many_ids_are_written_in_parts_without_values_that_are_no_ids(store: SqlStore, revokes: RevokeListener) -> None:
    ids = [f"{n:04}" for n in range(1_200)]
    bad = ["", "a\0b", "x" * 600, "\ud800", 7, None, ["a"]]
    assert revokes.revoke([*ids, *bad]) == (ids, bad)
    assert list(map(len, revoked(store, 0))) == [500, 500, 200]


def test_a_revoke_is_written_later_where_the_store_does_not_answer(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None]
) -> None:
    with pytest.raises(StoreError, match="away"):
        revokes.revoke(["a"])
    revokes.tend()
    assert commands(store, 0) == []
    back()
    revokes.tend()
    assert [revoked(store, shard) for shard in (0, 1)] == [[["a"]], [["a"]]]


def test_kept_ids_are_merged_into_few_commands(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None]
) -> None:
    """A thousand revokes of a task each are a few commands, and a repeated id is in them once."""
    for n in range(1_200):
        with pytest.raises(StoreError, match=f"away; {n + 1:,} revoked ids are kept in the memory of wheel@h"):
            revokes.revoke([f"{n:04}"])
    with pytest.raises(StoreError, match="1,201 revoked ids are kept"):
        revokes.revoke(["0007", "stamped"], "by stamp")
    back()
    revokes.tend()
    for shard in (0, 1):
        found = [(one["reason"], len(one["task_ids"])) for one in commands(store, shard)]
        assert found == [("revoked", 500), ("revoked", 500), ("revoked", 200), ("by stamp", 1)]


def test_ids_beyond_the_limit_are_refused_by_an_error(
    store: SqlStore,
    revokes: RevokeListener,
    back: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(revocation, "MAX_KEPT", 3)
    with pytest.raises(StoreError, match="2 revoked ids are kept"):
        revokes.revoke(["a", "b"])
    refused = r"away; 2 of 2 ids were refused and are not revoked: 2 are kept in the memory of wheel@h, which keeps 3"
    with pytest.raises(StoreError, match=refused):
        revokes.revoke(["a", "c", "d"])
    assert "2 of 2 ids were refused" in caplog.text
    back()
    assert revokes.revoke(["e"]) == (["e"], [])
    assert revoked(store, 0) == [["a", "b", "e"]]


def test_the_limit_does_not_count_while_the_store_answers(
    store: SqlStore, revokes: RevokeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revocation, "MAX_KEPT", 3)
    assert len(revokes.revoke([str(n) for n in range(9)])[0]) == 9


@pytest.mark.parametrize("answers", [True, False])
def test_a_scheduler_that_ends_writes_the_kept_ids_or_logs_their_loss(
    store: SqlStore, revokes: RevokeListener, back: Callable[[], None], caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    with pytest.raises(StoreError):
        revokes.revoke(["a", "b"])
    if answers:
        back()
    revokes.close()
    assert ("2 revoked ids could not be written and are lost" in caplog.text) is not answers
    assert revoked(store, 1) == ([["a", "b"]] if answers else [])


def test_the_answer_to_a_revoke_names_the_ignored_values(store: SqlStore, revokes: RevokeListener) -> None:
    view = SchedulerView("wheel@h", store, lambda: [0], RevokedStamps())
    answering = Commands(Celery("revokes", set_as_current=False), view, revokes)
    assert answering.revoke(None, task_id="a") == {"ok": "tasks a flagged as revoked"}
    text = answering.revoke(None, task_id=["a", "\ud800", "", *range(5)])["ok"]
    assert text == r"tasks a flagged as revoked; 7 ignored, which cannot be task ids: '\ud800', '', 0, 1, 2 …"


def test_a_scan_cancels_stamped_tasks_up_to_its_limit(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revocation, "PAGE", 10)
    monkeypatch.setattr(revocation, "MAX_SCANNED", 30)
    holder, rows = Holder(store), []
    for n in range(50):
        row = holder.row(NOW + n)
        stamps = {"n": [str(n)]} if n % 2 else None
        rows.append(replace(row, message=replace(row.message, headers=json.dumps({"stamps": stamps}).encode())))
    holder.apply(rows=rows)
    stamps = RevokedStamps()
    revokes = RevokeListener(SchedulerView("n", store, lambda: [0], stamps))
    stamps.add({"n": ["3", "4", "29", "31"]})
    assert revokes.scan(0) == 30
    found = [task_id for ids in revoked(store, 0) for task_id in ids]
    assert found == [rows[3].message.task_id, rows[29].message.task_id]
    assert "later tasks stay pending" in caplog.text


def test_each_of_several_schedulers_on_a_host_has_its_own_name() -> None:
    assert node_name("h/aa/1", ["h/aa/1", "other/bb/2"]) == "wheel@beat.h"
    assert node_name("h/aa/1", ["h/aa/1", "h/bb/2"]) == "wheel-1@beat.h"


def test_an_unexpected_error_of_a_scan_ends_no_later_scan(
    revokes: RevokeListener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(revocation, "RETRY_FIRST_S", 0.01)
    scanned: list[int] = []

    def scan(shard: int) -> int:
        scanned.append(shard)
        if len(scanned) == 1:
            raise LookupError("a defect")
        return 0

    monkeypatch.setattr(revokes, "scan", scan)
    revokes.revoke_stamps({"campaign": ["spring"]})
    wait_until(lambda: scanned == [0, 0], "the shard is scanned again")
    revokes.stop()
    assert "LookupError in " in caplog.text


HEADERS = {"argsrepr": "(1,)", "kwargsrepr": "{'user': 7, 'password': 'hunter2'}"}


@pytest.mark.parametrize(("mask", "shown"), [(NO_MASK, "hunter2"), (Mask(["password"]), "********")])
def test_arguments_are_masked(tmp_path: Path, mask: Mask, shown: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3", shards=1)
    Holder(store).accept(NOW, task_id="a", headers=json.dumps(HEADERS).encode())
    view = SchedulerView("wheel@h", store, lambda: [0], RevokedStamps(), mask)
    [scheduled] = inspection.scheduled(view)
    [_, request] = inspection.query(view, ["a"])["a"]
    for one in (scheduled["request"], request):
        assert one["kwargs"] == f"{{'user': 7, 'password': '{shown}'}}"
        assert one["args"] == "(1,)"
    store.close()


TASK = Task(1, 0, 0, 1_700_000_000_123, 256, 1_700_000_000_000, "id", "t", "celery", 5, None, None, None, 0, 0, 10)


def test_a_task_is_shown_by_its_headers_alone() -> None:
    head = MessageHead(json.dumps({"argsrepr": "(1,)", "kwargsrepr": "{}", "shadow": None}).encode(), "ex", "key")
    assert inspection.scheduled_item(TASK, head, "wheel@h") == {
        "eta": "2023-11-14T22:13:20.123000+00:00",
        "priority": 6,
        "request": {
            "id": "id",
            "name": "t",
            "args": "(1,)",
            "kwargs": "{}",
            "type": "t",
            "hostname": "wheel@h",
            "time_start": None,
            "acknowledged": True,
            "delivery_info": {"exchange": "ex", "routing_key": "key", "priority": 5, "redelivered": False},
            "worker_pid": None,
        },
    }


def test_protocol_1_has_no_headers_to_show() -> None:
    assert inspection.request_item(TASK, MessageHead(b"{}", "", "celery"), "n")["args"] == ""


#: Commands that only workers can carry out; see docs/control-celery.md.
FOR_WORKERS = {
    *("add_consumer", "autoscale", "cancel_consumer", "election", "hello", "pool_grow", "pool_restart", "pool_shrink"),
    *("rate_limit", "shutdown", "time_limit", "memdump", "memsample", "objgraph"),
}


def handlers() -> dict[str, Any]:
    app: Any = Celery("proj", set_as_current=False)
    return Commands(app, None, None).handlers()  # type: ignore[arg-type]  # no command is called


def test_every_command_of_celery_is_answered_or_left_to_workers() -> None:
    """A new version of Celery may have new commands."""
    assert set(Panel.data) == set(handlers()) | FOR_WORKERS
    assert not set(handlers()) & FOR_WORKERS


def test_the_manual_names_every_command_and_its_cap() -> None:
    manual = page("control-celery.md")
    assert [name for name in handlers() if not name.startswith("dump_") and f"`{name}`" not in manual] == []
    for cap in (inspection.MAX_TASKS, inspection.MAX_IDS, revocation.MAX_SCANNED, tombstones.MOST):
        assert f"{cap:,}" in manual


OFTEN = 12


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No garbage is collected unless it is asked for, as in a scheduler that has little to do."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_collector")
def test_a_node_without_its_broker_holds_no_more_descriptors_with_each_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    class Counted(node.Node):
        def _serve(self) -> None:
            tries.append(len(os.listdir("/proc/self/fd")))
            super()._serve()

    monkeypatch.setattr(node, "RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(node, "RETRY_MOST_S", 0.001)
    app: Any = Celery("proj", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.broker_connection_retry_on_startup = False
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    one = Counted(app, SchedulerView("wheel@h", store, list, RevokedStamps(), NO_MASK))
    one.start()
    wait_until(lambda: len(tries) > OFTEN, "the node has tried often")
    one.stop()
    one.join()
    store.close()
    assert max(tries) - tries[0] <= 2, tries


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("no_collector")
def test_a_node_whose_redis_is_killed_keeps_no_descriptor_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node, "RETRY_MOST_S", node.RETRY_FIRST_S)
    caplog.set_level("INFO", "celery_wheel")

    def listens(times: int) -> bool:
        return sum("listens" in line for line in caplog.messages) >= times

    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    with RedisServer(tmp_path / "redis") as server:
        app: Any = Celery("proj", broker=server.url, set_as_current=False)
        one = node.Node(app, SchedulerView("wheel@h", store, list, RevokedStamps(), NO_MASK))
        one.start()
        counts: list[int] = []
        for kills in range(4):
            wait_until(lambda times=kills + 1: listens(times), "the node listens")
            counts.append(len(os.listdir("/proc/self/fd")))
            server.kill()
            server.start()
        one.stop()
        one.join()
    store.close()
    assert counts[-1] <= counts[1], counts  # the connection that was lost last may be left


def test_a_node_that_says_that_it_listens_has_subscribed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A revoke that is sent at this moment arrives."""
    caplog.set_level("INFO", "celery_wheel")
    store = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    patterns: list[int] = []
    with RedisServer(tmp_path / "redis") as server, server.client() as client:

        class Asks(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if getattr(record, "action", None) == "node_listens":
                    patterns.append(client.pubsub_numpat())

        asks = Asks()
        node.logger.addHandler(asks)
        app: Any = Celery("proj", broker=server.url, set_as_current=False)
        one = node.Node(app, SchedulerView("wheel@h", store, list, RevokedStamps(), NO_MASK))
        one.start()
        wait_until(lambda: patterns, "the node listens")
        one.stop()
        one.join()
        node.logger.removeHandler(asks)
    store.close()
    assert patterns == [1]


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was loaded",)


def cancelled(body: bytes, content_type: str = "application/json", row_id: int = 1, **headers: Any) -> Row:
    raw_headers = json.dumps({"lang": "py", "task": "t", "id": "id", **headers}).encode()
    properties = json.dumps({"content_type": content_type, "content_encoding": "utf-8", "reply_to": "r"}).encode()
    parts = {"headers": raw_headers, "properties": properties, "body": body}
    row = make_row(row_id, "celery", task="t", priority=3, **parts)
    row.task_id = f"id{row_id}" if row_id > 1 else "id"
    return row


def json_body(**embed: Any) -> bytes:
    return json.dumps(
        [[1], {"a": 2}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **embed}]
    ).encode()


def test_a_request_has_the_fields_that_a_worker_reads() -> None:
    context = read(cancelled(json_body(chord={"task": "end"}), group="g", group_index=2, mine="own"), "wheel@h").context
    assert (context.id, context.task, context.args, context.kwargs) == ("id", "t", [1], {"a": 2})
    assert (context.chord, context.group, context.group_index) == ({"task": "end"}, "g", 2)
    assert (context.hostname, context.reply_to) == ("wheel@h", "r")
    assert context.delivery_info == {"exchange": "", "routing_key": "celery", "priority": 3, "redelivered": False}
    assert context.headers["mine"] == "own"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compress", "kind"),
    [(zlib.compress, "zlib"), (bz2.compress, "bzip2"), (lzma.compress, "application/x-lzma")],
    ids=["zlib", "bzip2", "lzma"],
)
def test_a_body_that_is_a_thousand_times_larger_decompressed_is_not_opened(compress: Any, kind: str) -> None:
    assert read(cancelled(compress(json_body(group="g")), compression=kind), "n").context.group == "g"
    bomb = compress(b"[" + b" " * 300_000_000)
    tracemalloc.start()
    found = read(cancelled(bomb, compression=kind), "n")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.broken == "Malformed"
    assert most < 5 * MAX_OPENED


@pytest.mark.parametrize("kind", sorted(compression.encoders()))
def test_a_body_is_read_whatever_kombu_compresses_it_by(kind: str) -> None:
    body, content_type = compression.compress(json_body(chord={"task": "end"}), kind)
    assert read(cancelled(body, compression=content_type), "n").context.chord == {"task": "end"}


def test_a_body_of_protocol_1_has_all_fields() -> None:
    body = json.dumps({"id": "id", "task": "t", "args": [1], "kwargs": {}, "taskset": "g", "chord": {"task": "end"}})
    context = read(cancelled(body.encode()), "n").context
    assert (context.group, context.chord, context.args) == ("g", {"task": "end"}, [1])


@pytest.mark.parametrize("content_type", ["application/x-python-serialize", "application/data", "text/strange"])
def test_a_pickle_is_never_loaded(content_type: str) -> None:
    found = read(cancelled(pickle.dumps(Bomb()), content_type), "n")
    assert not found.opened
    assert found.context.args is None


@pytest.fixture
def app() -> Celery:
    cache._DUMMY_CLIENT_CACHE.clear()  # one for all backends of the process
    return Celery("revoked", broker="memory://", backend="cache+memory://", set_as_current=False)


def test_a_revoked_task_is_recorded_as_a_worker_does(app: Celery) -> None:
    heard: list[tuple[Any, ...]] = []

    def receiver(sender: Any, request: Any, terminated: bool, signum: Any, expired: bool, **_: Any) -> None:
        heard.append((sender, request.id, terminated, signum, expired))

    signals.task_revoked.connect(receiver, weak=False)
    try:
        assert RevokedState(app, "wheel@h", lambda: False)([cancelled(json_body())]) == {1}
    finally:
        signals.task_revoked.disconnect(receiver)
    assert heard == [("t", "id", False, None, False)]
    assert app.backend.get_state("id") == "REVOKED"


@pytest.mark.parametrize(
    ("task_options", "header", "stored"),
    [
        ({}, None, True),
        ({"ignore_result": True}, None, False),
        ({"ignore_result": True}, False, celery.VERSION >= (5, 7)),  # older calls that do not say it send False
        ({}, True, False),
        ({"store_errors_even_if_ignored": True}, True, True),
    ],
)
def test_an_ignored_result_is_not_stored(app: Celery, task_options: Any, header: Any, stored: bool) -> None:
    @app.task(name="t", shared=False, **task_options)
    def t() -> None: ...

    RevokedState(app, "n", lambda: False)([cancelled(json_body(), ignore_result=header)])
    assert (app.backend.get_state("id") == "REVOKED") is stored


class Failing:
    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.fails, self.tried, mark = set[str](), list[str](), app.backend.mark_as_revoked

        def record(task_id: str, *args: Any, **options: Any) -> Any:
            self.tried.append(task_id)
            if task_id in self.fails:
                raise error
            return mark(task_id, *args, **options)

        monkeypatch.setattr(app.backend, "mark_as_revoked", record)


def test_a_task_that_cannot_be_recorded_delays_itself_alone_and_is_tried_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("secret"))
    backend.fails = {"id2"}
    rows = [cancelled(json_body(), row_id=n) for n in (2, 3)]
    assert record(rows) == {3}
    backend.fails = set()
    assert record(rows[:1]) == {2}
    assert backend.tried == ["id2", "id3", "id2"]
    assert "task id2 (t) was cancelled, and the result backend could not record that (ConnectionError)" in caplog.text
    assert "secret" not in caplog.text


def test_a_backend_that_is_away_is_tried_a_few_times_in_a_call_and_forgets_no_task(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("away"))
    backend.fails = {f"id{n}" for n in range(2, 5_000)}
    for start in range(2, 5_000, 40):
        rows = [cancelled(json_body(), row_id=n) for n in range(start, start + 40)]
        backend.tried.clear()
        assert record(rows) == set()
        assert len(backend.tried) == AWAY_AFTER
    for _ in range(2_000):
        assert record(rows[:1]) == set(), "the outage is no fault of the task"
    assert len(record._suspects) <= SUSPECTS
    assert len(caplog.records) == 1
    backend.fails = set()
    assert len(record(rows)) == 40


def test_memory_of_tasks_that_could_not_be_recorded_is_bounded(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheel.scheduler.remote_control.revoked_state.SUSPECTS", 10)
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, ConnectionError("away"))
    backend.fails = {f"id{n}" for n in range(2, 100)}
    for n in range(2, 100):
        record([cancelled(json_body(), row_id=n)])
    assert list(record._suspects) == list(range(90, 100))


@pytest.mark.parametrize("error", [EncodeError("secret"), ConnectionError("secret")])
def test_a_task_that_alone_can_never_be_recorded_is_given_up(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """A connection error may be the task's own: a server that refuses a value by closing the connection."""
    record, backend = RevokedState(app, "n", lambda: False), Failing(app, monkeypatch, error)
    backend.fails = {"id2"}
    bad, rounds = cancelled(json_body(), row_id=2), 0
    while record([bad]) != {2}:
        rounds += 1
        assert record([cancelled(json_body(), row_id=2 + rounds)]) == {2 + rounds}
        assert rounds < 2 * TRIES
    assert not record._suspects
    assert f"task id2 (t) was cancelled, and the result backend could not record that ({type(error).__name__}); " in (
        caplog.records[-1].getMessage()
    )
    assert "it is not tried again" in caplog.records[-1].getMessage()
    assert "secret" not in caplog.text


@pytest.mark.parametrize("group", [None, "g"])
def test_a_task_whose_body_cannot_be_decoded_is_recorded_without_it(
    app: Celery, caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    record = RevokedState(app, "n", lambda: False)
    assert record([cancelled(b"{secret", row_id=2, group=group), cancelled(json_body(), row_id=3)]) == {2, 3}
    assert (app.backend.get_state("id2"), app.backend.get_state("id3")) == ("REVOKED", "REVOKED")
    [line] = [one.getMessage() for one in caplog.records]
    assert line == (
        "task id2 (t) was cancelled, and its body cannot be decoded (DecodeError); its state is recorded without its "
        "arguments"
    )
