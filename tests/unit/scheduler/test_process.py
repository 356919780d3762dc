"""The processes of a scheduler: memory, messages to systemd, by a socket like systemd's own, and the supervisor.

The health of a scheduler process: live, ready, and why not; the span of a publish, linked to its messages. The share
of each scheduler: even, with as few moves as possible.
"""

import json
import logging
import os
import pickle
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from celery import _state
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_wheel import Celery
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Stuck
from celery_wheel.errors import BrokerError, SettingError, StoreError
from celery_wheel.overview import read_overview
from celery_wheel.scheduler import monitoring, supervisor
from celery_wheel.scheduler.monitoring import ARENAS, GARBAGE_EVERY, SWITCH_S, Health, Watchdog, notify, watchdog_s
from celery_wheel.scheduler.share import Role, Share, share
from celery_wheel.scheduler.spans import MAX_LINKS, DispatchSpans
from celery_wheel.scheduler.supervisor import Supervisor, changes_of, path_of
from celery_wheel.store import open_store
from celery_wheel.store.model import Row
from celery_wheel.store.ports.pages import Disk, StoreSize
from celery_wheel.store.sql.store import SqlStore
from tests.kit.holder import NOW, Holder, message
from tests.kit.patience import patience
from tests.unit.engine.conftest import Rig

#: Eight threads hold memory at the same time, which glibc describes afterwards.
PROGRAM = """
import ctypes, gc, sys, threading
from celery_wheel.scheduler.monitoring import tune_process
if {tuned}:
    tune_process()
barrier, held = threading.Barrier(8), []
def work():
    barrier.wait()
    held.append([bytes(2_000) for _ in range(500)])
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(gc.get_threshold()[0], sys.getswitchinterval(), flush=True)
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def _run(*, tuned: bool) -> tuple[int, float, int]:
    """Return how many objects make a run of the garbage collector due, a thread's seconds, and the number of arenas."""
    program = PROGRAM.format(tuned=tuned)
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    objects, seconds, *_ = said.split()
    return int(objects), float(seconds), said.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_a_scheduler_has_few_arenas_collects_garbage_seldom_and_lets_its_threads_wait_briefly() -> None:
    assert _run(tuned=True) == (GARBAGE_EVERY, pytest.approx(SWITCH_S), ARENAS)
    threshold, seconds, arenas = _run(tuned=False)
    assert threshold < GARBAGE_EVERY
    assert seconds > SWITCH_S
    assert arenas > ARENAS


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(patience())
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_a_state_reaches_systemd(manager: socket.socket) -> None:
    notify("READY=1\nSTATUS=holds 1 of 1 shards")
    assert manager.recv(100) == b"READY=1\nSTATUS=holds 1 of 1 shards"


def test_a_name_without_a_file_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"wheel-test-{os.getpid()}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(patience())
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1")
        assert listening.recv(100) == b"READY=1"


def test_a_systemd_that_is_gone_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1\nSTATUS=x")
    assert "systemd is not told READY=1" in caplog.text


def test_nothing_is_sent_outside_a_unit(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    caplog.set_level(logging.DEBUG)
    notify("READY=1")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [("", "", 0.0), ("x", "", 0.0), ("3000000", "", 1.5), ("3000000", "own", 1.5), ("3000000", "1", 0.0)],
)
def test_a_sign_of_life_comes_twice_in_the_time_of_the_watchdog(
    microseconds: str, pid: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert watchdog_s() == seconds


def test_the_watchdog_is_fed_while_the_engines_run(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    pool, lives = Pool(), iter([True, True])  # more messages than the socket takes would hold the thread up
    watchdog = Watchdog(pool, lambda: next(lives, False), lambda: "holds 1 of 1 shards")
    watchdog.start()
    for _ in range(2):
        assert manager.recv(100) == b"WATCHDOG=1\nSTATUS=holds 1 of 1 shards"
    watchdog.stop()
    assert watchdog._job.join(time.monotonic() + patience())
    pool.close()


class FakeProcess:
    """A process that ends when a test says so; ``stubborn``: it ends by a kill only."""

    stubborn = False

    def __init__(self, **_: Any) -> None:
        self.pid: int | None = None
        self.exitcode: int | None = None

    def start(self) -> None:
        self.pid = 4711

    def terminate(self) -> None:
        if not self.stubborn:
            self.exitcode = 0

    def kill(self) -> None:
        self.exitcode = -9

    def join(self, timeout: float | None = None) -> None: ...


class ChildRig:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, app: Any) -> None:
        self.now_s, self.ends = 100.0, 0
        self.started: list[FakeProcess] = []
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.supervisor = Supervisor(app, lambda app: app, self._count, self._make)

    def _make(self, **options: Any) -> FakeProcess:
        self.started.append(FakeProcess(**options))
        return self.started[-1]

    def _count(self) -> None:
        self.ends += 1

    def restart_s(self) -> float:
        """End the child that was started last; return the time until the next is started."""
        count, began_s = len(self.started), self.now_s
        self.started[-1].exitcode = 1
        while len(self.started) == count:
            self.supervisor.tend()
            self.now_s += 0.5
        return self.now_s - 0.5 - began_s


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Celery("shop", set_as_current=False)
    found.conf.update(wheel_processes=2, wheel_shards=2)
    module = ModuleType("shop_of_this_test")
    module.celery_app = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop_of_this_test", module)
    return found


@pytest.fixture
def child_rig(monkeypatch: pytest.MonkeyPatch, app: Any) -> ChildRig:
    found = ChildRig(monkeypatch, app)
    found.supervisor.tend()
    return found


def test_a_child_that_ends_is_started_again_after_longer_and_longer_waits(child_rig: ChildRig) -> None:
    assert [child_rig.restart_s() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert child_rig.ends == 7
    child_rig.now_s += supervisor.STEADY_S + 1
    assert child_rig.restart_s() == 1


def test_a_child_that_ends_again_and_again_is_logged_once_a_minute(
    child_rig: ChildRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "celery_wheel")
    for _ in range(5):  # after 1, 2, 4, 8 and 16 s
        child_rig.restart_s()
    assert len(caplog.messages) == 1
    for _ in range(2):
        child_rig.restart_s()
    assert caplog.messages[1:] == [
        "process 2 of the scheduler (pid 4711) ended with exit code 1; the other processes take its shards, and it is "
        "started again in 30 s (5 more times since it was last logged)"
    ]


def test_a_child_that_the_system_does_not_start_is_tried_again(child_rig: ChildRig) -> None:
    with mock.patch.object(FakeProcess, "start", side_effect=BlockingIOError(11, "Resource temporarily unavailable")):
        child_rig.restart_s()
    assert child_rig.ends == 2
    count = len(child_rig.started)
    child_rig.now_s += 2
    child_rig.supervisor.tend()
    assert child_rig.started[count].pid is not None


def test_a_stop_kills_a_child_that_does_not_end(child_rig: ChildRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeProcess, "stubborn", True)
    [process] = child_rig.started
    child_rig.supervisor.terminate()
    child_rig.supervisor.join()
    assert process.exitcode == -9


def test_a_stop_before_the_first_tick_and_without_children_does_nothing(app: Any) -> None:
    one = Supervisor(app, lambda app: app, lambda: None)
    one.terminate()
    one.join()
    app.conf.wheel_processes = 1
    one.tend()
    one.terminate()
    one.join()


def test_an_app_is_found_by_the_module_that_has_it(app: Any) -> None:
    assert path_of(app) == ("shop_of_this_test", "celery_app")


def test_an_app_that_only_celery_itself_refers_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    local = Celery("local", set_as_current=False)
    monkeypatch.setattr(_state, "default_app", local)
    with pytest.raises(SettingError, match="wheel_processes must be 1 for the app 'local'"):
        path_of(local)


def test_settings_without_a_pickle_are_left_to_the_module(app: Any) -> None:
    app.conf.update(broker_url="redis://elsewhere", task_routes=lambda name: None)
    found = changes_of(app)
    assert found["broker_url"] == pickle.dumps("redis://elsewhere")
    assert "task_routes" not in found


OBJECTIVE_MS = 5_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = open_store(f"sqlite:///{tmp_path}/wheel.sqlite3")
    Holder(found)
    yield found
    found.close()


def health_of(store: SqlStore, *engines: Engine, failure: BaseException | None = None) -> Health:
    pool = Pool()
    pool.failure = failure and ("ingest of shard 0", failure)
    return Health(lambda: engines, pool, lambda: read_overview(store, NOW), store.browse.size, OBJECTIVE_MS)


def test_a_holder_in_time_is_live_and_ready(rig: Rig, store: SqlStore) -> None:
    rig.run(rounds=1)
    Holder(store).accept(NOW - OBJECTIVE_MS)
    found = health_of(store, rig.engine)
    assert (found.livez(""), found.readyz("")) == ((200, b"ok\n", monitoring.HttpAnswer(1, b"").content_type),) * 2


def test_a_holder_that_is_later_than_the_objective_is_not_ready(rig: Rig, store: SqlStore) -> None:
    Holder(store).accept(NOW - OBJECTIVE_MS - 500)
    found = health_of(store, rig.engine)
    assert found.not_ready() == [], "another process holds the shard"
    rig.run(rounds=1)
    assert found.not_live() == []
    assert found.not_ready() == ["shard 0 is 5.5 s late, and wheel_objective allows 5 s"]


def test_a_standby_is_ready_while_another_holds_the_shard(rig: Rig, store: SqlStore) -> None:
    standby = Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)
    assert health_of(store, standby).not_ready() == []
    store.release(0, store.state(0).epoch)
    assert health_of(store, standby).not_ready() == ["shard 0 has no holder"]


def test_a_standby_is_not_ready_while_the_holder_is_silent(rig: Rig, store: SqlStore) -> None:
    standby = Engine(0, "two", rig.store, rig.broker, rig.clock, rig.limits)
    epoch, holder = store.state(0).epoch, store.holders()[0]
    store.renew(0, epoch, NOW - 1_000, 3_000, {"levels": []})
    assert health_of(store, standby).not_ready() == []
    store.renew(0, epoch, NOW - 54_000, 3_000, {"levels": []})
    assert health_of(store, standby).not_ready() == [f"shard 0 has no live holder: {holder} was seen 54 s ago"]


@pytest.mark.parametrize(("free", "ready"), [(0, False), (2**20 - 1, False), (2**20, True)])
def test_a_full_disk_is_named_and_no_reason_to_restart(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch, free: int, ready: bool
) -> None:
    rig.run(rounds=1)
    monkeypatch.setattr(store.browse, "size", lambda: StoreSize(300_000, Disk(2**30, free)))
    found = health_of(store, rig.engine)
    assert found.not_live() == []
    assert (found.not_ready() == []) is ready
    assert ready or f"the disk of the store has {free:,} bytes left: nothing is accepted" in found.not_ready()[0]


def test_a_store_and_a_broker_that_do_not_answer_are_named(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.browse, "overview", mock.Mock(side_effect=StoreError("gone")))
    monkeypatch.setattr(rig.broker, "depth", mock.Mock(side_effect=BrokerError("refused")))
    found = health_of(store, rig.engine)
    assert found.not_ready() == ["the store does not answer: gone", "the broker does not answer: refused"]
    assert found.livez("").status == 200, "a restart would not help"
    assert found.readyz("").status == 503


def test_a_clock_that_is_too_far_off_is_named(rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.clock, "_fit", False)
    assert "clock" in health_of(store, rig.engine).not_ready()[0]


def test_a_process_whose_engine_failed_is_not_live(rig: Rig, store: SqlStore) -> None:
    found = health_of(store, rig.engine, failure=LookupError("a defect"))
    assert found.livez("").status == 503
    assert b"a defect" in found.livez("").body
    assert found.readyz("").status == 503


@pytest.mark.parametrize(
    ("runs", "answers", "live"), [(True, True, False), (True, False, True), (False, True, False), (False, False, False)]
)
def test_a_stuck_job_is_not_live_unless_it_may_wait_for_a_silent_server(
    rig: Rig, store: SqlStore, monkeypatch: pytest.MonkeyPatch, runs: bool, answers: bool, live: bool
) -> None:
    found = health_of(store, rig.engine)
    monkeypatch.setattr(found._pool, "stuck", lambda: [Stuck("settle of shard 0", 14, runs)])
    if not answers:
        monkeypatch.setattr(rig.broker, "depth", mock.Mock(side_effect=BrokerError("refused")))
    assert (found.not_live() == []) is live
    assert live or "the job settle of shard 0" in found.not_live()[0]


def test_a_process_without_engines_is_starting_or_stopping(store: SqlStore) -> None:
    assert health_of(store).not_ready() == ["the scheduler is starting or stopping"]


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def row(number: int, flags: str | None = "01", **parts: object) -> Row:
    headers: dict[str, object] = {"lang": "py", "id": f"t{number}"}
    if flags is not None:
        headers["traceparent"] = f"00-{TRACE}-{SPAN}-{flags}"
    return Row.of(message(headers=json.dumps(headers).encode(), eta_ms=NOW - 40, **parts), number, 0, NOW, number)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> DispatchSpans:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return DispatchSpans(3, provider)


def test_a_span_links_the_sampled_traces_of_its_messages_and_is_a_trace_of_its_own(
    spans: DispatchSpans, exporter: InMemorySpanExporter
) -> None:
    spans([row(1), row(2, "00"), row(3, None)], NOW, NOW + 5)
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert (span.start_time, span.end_time) == (NOW * 10**6, (NOW + 5) * 10**6)
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    [link] = span.links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE, SPAN)
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id
    assert dict(link.attributes or {}) == {
        "messaging.message.id": "t1",
        "messaging.destination.name": "celery",
        "celery.task_name": "app.remind",
        "wheel.eta_ms": NOW - 40,
        "wheel.late_ms": 40,
    }


def test_messages_without_a_sampled_trace_have_no_span(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    damaged = row(4)
    damaged.packed = b"?"
    # A traceparent in the arguments of a task is no context.
    body = row(5, None, body=f'"traceparent": "00-{TRACE}-{SPAN}-01"'.encode())
    spans([row(2, "00"), row(3, None), damaged, body], NOW, NOW)
    assert exporter.get_finished_spans() == ()


def test_a_large_publish_has_several_spans(spans: DispatchSpans, exporter: InMemorySpanExporter) -> None:
    spans([row(n) for n in range(MAX_LINKS + 1)], NOW, NOW)
    assert [len(span.links) for span in exporter.get_finished_spans()] == [MAX_LINKS, 1]


def test_only_the_scheduler_with_most_shards_gives_one_to_a_newcomer() -> None:
    holders: dict[int, str | None] = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}
    gives = [share(name, ["a", "b", "c"], holders, [n for n in holders if holders[n] == name]).give for name in "abc"]
    assert gives == [2, 5, None]


def test_no_shard_is_given_while_one_is_free() -> None:
    holders = {0: "a", 1: "a", 2: "gone", 3: "b"}
    assert share("a", ["a", "b", "c"], holders, [0, 1]).give is None
    assert 2 in share("c", ["a", "b", "c"], holders, []).take


def test_a_shard_that_a_living_scheduler_has_lost_without_a_word_is_tried_soon() -> None:
    """The store still names that scheduler, whose release failed; of its shards one alone is free."""
    holders = {0: "a", 1: "a", 2: "b", 3: "a"}
    tried = [share("b", ["a", "b"], holders, [2], turn=turn).take for turn in range(3)]
    assert all(len(one) == 1 for one in tried), "no more than its share"
    assert set().union(*tried) == {0, 1, 3}
    assert share("a", ["a", "b"], holders, [0, 1]) == Share(), "the one that lost it has its share"


class Cluster:
    """Schedulers that apply their share in any order, and a store that gives a shard to one only."""

    def __init__(self, shards: int, rng: random.Random, roles: Mapping[str, Role] = {}) -> None:
        self.roles = roles
        self.holders: dict[int, str | None] = dict.fromkeys(range(shards))
        self.alive: set[str] = set()
        self.rng = rng
        self.moves = 0

    def settle(self) -> None:
        for _ in range(3 * len(self.holders) + 10):
            for name in self.rng.sample(sorted(self.alive), len(self.alive)):
                self.apply(name)

    def apply(self, name: str) -> None:
        held = [shard for shard, holder in self.holders.items() if holder == name]
        found = share(name, sorted(self.alive), self.holders, held, self.roles.get(name, Role.ANY))
        for shard in found.take:
            if self.holders[shard] not in self.alive:
                self.holders[shard] = name
                self.moves += 1
        if found.give is not None:
            self.holders[found.give] = None

    def counts(self) -> list[int]:
        found = Counter(self.holders.values())
        return sorted(found[name] for name in self.alive)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    shards=st.integers(1, 24),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_the_shares_become_even_with_as_few_moves_as_possible(
    shards: int, changes: list[tuple[bool, int]], seed: int
) -> None:
    cluster = Cluster(shards, random.Random(seed))
    for joins, number in changes:
        before = dict(cluster.holders)
        name = f"scheduler-{number}"
        if joins:
            cluster.alive.add(name)
        else:
            cluster.alive.discard(name)
        if not cluster.alive:
            continue
        cluster.moves = 0
        cluster.settle()
        counts = cluster.counts()
        assert sum(counts) == shards
        assert counts[-1] - counts[0] <= 1
        orphans = sum(holder not in cluster.alive for holder in before.values())
        high = -(-shards // len(cluster.alive))
        assert cluster.moves <= orphans + high, "more shards moved than a newcomer gets"
        cluster.moves = 0
        cluster.settle()
        assert cluster.moves == 0, "shards still move"


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    shards=st.integers(2, 12),
    changes=st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_shard_0_stays_with_parents_and_the_shares_become_even(
    shards: int, changes: list[tuple[bool, int, int]], seed: int
) -> None:
    """Parents ``0-0``, ``1-0``, … on several machines with children ``0-1``, …; a child ends with its parent."""
    roles = {f"{host}-{n}": Role.CHILD if n else Role.PARENT for host in range(3) for n in range(4)}
    cluster = Cluster(shards, random.Random(seed), roles)
    for joins, host, number in changes:
        family = {f"{host}-{n}" for n in range(4)}
        if joins:
            cluster.alive |= {f"{host}-0", f"{host}-{number}"}
        else:
            cluster.alive -= {f"{host}-{number}"} if number else family
        if not cluster.alive:
            continue
        cluster.settle()
        counts = cluster.counts()
        assert roles[str(cluster.holders[0])] is Role.PARENT
        assert sum(counts) == shards
        assert counts[-1] - counts[0] <= 1
        cluster.moves = 0
        cluster.settle()
        assert cluster.moves == 0, "shards still move"


@pytest.mark.parametrize("me", [f"host/{number}" for number in range(8)])
def test_a_shard_that_a_scheduler_itself_lost_is_free_for_it(me: str) -> None:
    """The store names it as the holder still: nobody else takes that shard, and another is not to be had."""
    assert share(me, ["another", me], {0: me, 1: "another"}, held=[]) == Share(take=frozenset({0}))
    assert share(me, ["another", me], {0: "another", 1: me}, held=[]) == Share(take=frozenset({1}))
