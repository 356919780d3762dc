"""Listen: an idle ingest asks the broker nothing, and no message or command waits longer for that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import pytest

from celery_wheel.engine import runner
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.engine.round import Round, RoundSteps, run_round
from celery_wheel.engine.runner import AT_ONCE, UNTIL_WOKEN, Runner
from celery_wheel.errors import BrokerError
from celery_wheel.timing import ManualClock
from tests.simulation.model_redis import ModelRedis
from tests.unit.engine.conftest import Rig


def listening(rig: Rig) -> Iterator[str | Round]:
    rig.run("tend", "ingest")
    steps = rig.engine.listen()
    assert next(steps) == "listens"
    return steps


def test_ingest_peeks_again_when_listen_has_found_a_message(rig: Rig) -> None:
    steps = listening(rig)
    with mock.patch.object(rig.broker, "peek") as peek:
        rig.run("ingest", rounds=3)
        peek.assert_not_called()
    assert not rig.engine.ctx.queue.may_have_messages()
    rig.send("one", 1_000)
    assert list(steps) == [Round.IDLE]
    assert rig.engine.ctx.queue.arrived.is_set()
    assert rig.engine.ctx.queue.may_have_messages()
    assert rig.run("ingest") is Round.BUSY
    assert rig.run("ingest") is Round.IDLE
    assert rig.engine.stats.accepted == 1
    assert (rig.engine.ctx.queue.arrived.is_set(), rig.engine.ctx.queue.emptied.is_set()) == (False, True)


def test_a_message_between_the_peek_and_the_call_is_found(rig: Rig) -> None:
    rig.run("tend", "ingest")
    rig.send("one", 1_000)
    rig.run("listen")
    assert rig.engine.ctx.queue.arrived.is_set()


def test_a_command_is_answered_after_a_peek(rig: Rig) -> None:
    """The message was sent before the command, and the broker has not told of it yet."""
    listening(rig)
    rig.send("one", 1_000)
    assert rig.ask("cancel", task_ids=["one"]) == {"one": "done"}


@pytest.mark.parametrize(
    ("can_wait", "answer", "end"),
    [(True, BrokerError("no answer"), Round.FAILED), (False, lambda *_: False, Round.IDLE)],
    ids=["does not answer", "shows by its answer, which is no failure, that it cannot wait"],
)
def test_ingest_peeks_at_once_and_at_each_poll_where_the_broker(
    rig: Rig, can_wait: bool, answer: Any, end: Round
) -> None:
    """Ingest has left out its peek while the call was open, and sleeps: the end of the call wakes it."""
    steps = listening(rig)
    with (
        mock.patch.object(ModelRedis, "can_wait", new=can_wait),
        mock.patch.object(rig.broker, "await_message", side_effect=answer),
    ):
        with mock.patch.object(rig.engine.ctx.queue.arrived, "listener") as wake:
            assert list(steps) == [end]
            wake.assert_called_once()
        assert peeks_at_each_poll(rig)


def test_ingest_peeks_at_each_poll_where_the_broker_cannot_wait(rig: Rig) -> None:
    with mock.patch.object(ModelRedis, "can_wait", new=False):
        with mock.patch.object(rig.engine.ctx.queue.emptied, "listener") as wake:
            assert peeks_at_each_poll(rig)
            wake.assert_not_called()
        with mock.patch.object(rig.broker, "await_message") as waits:
            assert rig.run("listen") is Round.IDLE
            waits.assert_not_called()


@pytest.mark.slow
def test_no_round_fails_however_long_an_idle_scheduler_has_peeked_at_a_broker_that_cannot_wait(rig: Rig) -> None:
    """100,000 rounds are more than an hour of an idle scheduler."""
    pool, ends = ManualPool(rig.clock), Counter[Round]()

    def counted(steps: RoundSteps, *on_step: Callable[[], None]) -> Round:
        ends[end := run_round(steps, *on_step)] += 1
        return end

    with (
        mock.patch.object(ModelRedis, "can_wait", new=False),
        mock.patch.object(runner, "run_round", counted),
        mock.patch.object(rig.engine, "listen") as listen,
    ):
        [jobs] = Runner(rig.engine, lease_ms=2_000, poll_ms=50, pool=cast(Pool, pool)).shards
        jobs.wake()
        for n in range(100):
            pool.run(1_000)
            rig.send(f"task {n}", 0)
        pool.run(20)
    listen.assert_not_called()
    assert ends.total() > 100_000
    assert ends[Round.FAILED] == 0
    assert rig.engine.stats.dispatched == 100
    assert pool.now_s() > 3_600


def peeks_at_each_poll(rig: Rig) -> bool:
    rig.run("tend", "ingest")
    with mock.patch.object(rig.broker, "peek", wraps=rig.broker.peek) as peek:
        rig.run("ingest", rounds=3)
    return bool(rig.engine.ctx.queue.may_have_messages() and peek.call_count == 3)


class ManualPool:
    """Runs the jobs of a Runner in this thread, each at its instant, and moves a clock to that instant."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._began_ms = clock.monotonic_ms()
        self._jobs: list[ManualJob] = []

    def now_s(self) -> float:
        return (self._clock.monotonic_ms() - self._began_ms) / 1_000

    def job(self, run: Callable[[], Wait], *_: Any, **__: Any) -> ManualJob:
        self._jobs.append(ManualJob(self, run))
        return self._jobs[-1]

    def stuck(self) -> list[Any]:
        return []

    def run(self, count: int) -> None:
        for _ in range(count):
            job = min(self._jobs, key=lambda one: one.at_s)
            self._clock.advance(max(0, math.ceil((job.at_s - self.now_s()) * 1_000)))
            job.at_s = math.inf
            wait = job.run()
            job.not_before_s = self.now_s() + wait.least_s
            job.at_s = max(job.not_before_s, min(job.at_s, self.now_s() + wait.most_s))


class ManualJob:
    def __init__(self, pool: ManualPool, run: Callable[[], Wait]) -> None:
        self._pool = pool
        self.run = run
        self.at_s = math.inf
        self.not_before_s = 0.0

    def wake(self) -> None:
        self.at_s = min(self.at_s, max(self.not_before_s, self._pool.now_s()))

    def step(self) -> None: ...


def test_a_failed_peek_is_repeated(rig: Rig) -> None:
    rig.run("tend", "ingest")
    with mock.patch.object(rig.broker, "peek", side_effect=BrokerError("no answer")):
        assert rig.run("ingest") is Round.FAILED
    assert rig.engine.ctx.queue.arrived.is_set()


def test_listen_waits_until_a_peek_has_found_nothing(rig: Rig) -> None:
    """Also where no shard is held any more: a job that ran again at once would keep a core busy."""
    [jobs] = Runner(rig.engine, lease_ms=2_000, poll_ms=50).shards
    jobs.cancel()  # no thread of the pool runs one: the test does
    rig.run("tend", "ingest")
    assert jobs._after_listen(rig.run("listen"), 2.0) == AT_ONCE, "nothing was found, so the next call finds what comes"
    rig.send("one", 1_000)
    assert jobs._after_listen(rig.run("listen"), 0.0) == UNTIL_WOKEN
    with mock.patch.object(rig.engine.ctx.queue.emptied, "listener") as wake:
        rig.run("ingest")
        wake.assert_not_called()
        rig.run("ingest")
        wake.assert_called_once()
    rig.run("release")
    assert jobs._after_listen(rig.run("listen"), 0.0) == UNTIL_WOKEN
