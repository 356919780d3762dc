"""Bugs of age, each planted by patching one thing, with the part of a year in which it shows.

Each of them lives for minutes unseen, and most of them for weeks: a test that ends a process after a minute finds none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from celery_wheel.broker.amqp.edge import AmqpIngress
from celery_wheel.engine import listen as listen_module
from celery_wheel.engine import pool as pool_module
from celery_wheel.engine import runner
from celery_wheel.engine.due_clock import DueClock
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.engine.round import Round, Signal
from celery_wheel.engine.runner import InboxWatch, ShardJobs
from celery_wheel.engine.stats import Stats
from celery_wheel.errors import BrokerError
from celery_wheel.requests.answers import ProcessStore
from celery_wheel.scheduler import share as share_module
from celery_wheel.scheduler import supervisor as supervisor_module
from celery_wheel.scheduler.remote_control.node import Node
from celery_wheel.scheduler.remote_control.revoked_state import RevokedState
from celery_wheel.scheduler.share import Balance, Share
from celery_wheel.scheduler.sources.sources import Sources
from celery_wheel.scheduler.supervisor import Supervisor
from celery_wheel.timing import retry
from celery_wheel.timing.retry import Backoff, RetryLog
from celery_wheel.worker import run_reports as reporter_module
from celery_wheel.worker.run_reports import Reporter
from tests.year.rabbit import Rabbit

#: The parts of a year in which bugs show: arguments of ``Year``.
#: A moment after noon in Berlin, in winter: the entry's run has begun, and has not ended.
NOON = (11 + 1.2 / 3_600) / 24
FORTNIGHT = {"seed": 1, "days": 14, "month": 2}
SHORT = {"seed": 1, "days": 8, "month": 30, "deep_s": 400.0}
MONTH = {"seed": 2, "days": 30, "month": 40, "deep_s": 60.0}
SPRING = {"seed": 1, "days": 4, "month": 30, "deep_s": 100.0, "start": datetime(2028, 3, 24, tzinfo=UTC)}

#: Two schedulers with a child each.
SHARED = {"seed": 3, "days": 8, "month": 30, "deep_s": 30.0, "shards": 3, "processes": 2}

ON_RABBITMQ = {"seed": 1, "days": 14, "month": 2, "deep_s": 60.0, "broker": Rabbit}

Plant = Callable[[], AbstractContextManager[dict[str, Any]]]


@contextmanager
def power_without_a_cap() -> Iterator[dict[str, Any]]:
    """The wait is computed by a power of the failures, which has no float from the 1,024th on."""

    class Powers(Backoff):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.failures = 0

        def failed(self) -> float:
            self.failures += 1
            return min(self._most_s, self._first_s * 2.0**self.failures)

        def succeeded(self) -> None:
            self.failures = 0

    with mock.patch.object(runner, "Backoff", Powers):
        yield {**SHORT, "deep_s": 2_400.0, "also": [(3.6, 4_000, "broker", "refused")]}


@contextmanager
def wait_without_a_bound() -> Iterator[dict[str, Any]]:
    """The wait is doubled for ever: an outage of an hour is followed by one of another hour."""

    def failed(self: Backoff) -> float:
        wait_s, self._next_s = self._next_s, self._next_s * 2
        return wait_s

    with mock.patch.object(Backoff, "failed", failed), mock.patch.object(pool_module, "IDLE_S", 10**9):
        yield {**SHORT, "deep_s": 2_400.0, "also": [(3.6, 4_000, "broker", "refused")]}


@contextmanager
def list_that_is_never_purged() -> Iterator[dict[str, Any]]:
    """Each commit leaves an item in a list of the engine."""
    committed = Stats.committed

    def careless(self: Stats, *arguments: Any) -> None:
        self.__dict__.setdefault("history", []).append(arguments)
        committed(self, *arguments)

    with mock.patch.object(Stats, "committed", careless):
        yield FORTNIGHT


@contextmanager
def wake_that_is_lost() -> Iterator[dict[str, Any]]:
    """A row that is accepted late does not wake dispatch."""
    with _deaf(lambda jobs: jobs.engine.ctx.wake):
        yield SHORT


@contextmanager
def message_that_wakes_nobody() -> Iterator[dict[str, Any]]:
    """The broker tells of a message, and ingest is not woken."""
    with _deaf(lambda jobs: jobs.engine.ctx.queue.arrived):
        yield SHORT


@contextmanager
def _deaf(signal_of: Callable[[ShardJobs], Signal]) -> Iterator[None]:
    begin = ShardJobs.__init__

    def careless(self: ShardJobs, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        signal_of(self).listener = lambda: None

    with mock.patch.object(ShardJobs, "__init__", careless):
        yield


@contextmanager
def timer_that_is_not_set_again() -> Iterator[dict[str, Any]]:
    """Dispatch waits for a wake, and no longer for the next due time."""

    def careless(self: ShardJobs, round_: Round, took_s: float) -> Wait:
        return Wait(0.0, 0.0) if round_ is Round.BUSY else Wait()

    with mock.patch.object(ShardJobs, "_after_dispatch", careless):
        yield SHORT


@contextmanager
def job_that_ends_after_a_failure() -> Iterator[dict[str, Any]]:
    """A job that has failed is not run again."""
    run = ShardJobs._run

    def careless(self: ShardJobs, name: str, *arguments: Any) -> Wait:
        wait = run(self, name, *arguments)
        if name == "prefetch" and wait.least_s == wait.most_s:
            self.jobs[name].cancel()
        return wait

    with mock.patch.object(ShardJobs, "_run", careless):
        yield {**SHORT, "also": [(2 + NOON, 30, "store", "refused")]}


@contextmanager
def job_that_dies_silently() -> Iterator[dict[str, Any]]:
    """A job meets an error that it does not expect, and nobody is told."""
    ingest = Engine.ingest

    def fragile(self: Engine) -> Any:
        for step in ingest(self):
            if step is Round.FAILED:
                raise LookupError("simulated")
            yield {**SHORT, "also": [(3.6, 30, "broker", "refused")]}

    with mock.patch.object(Engine, "ingest", fragile), mock.patch.object(Pool, "_fail"):
        yield FORTNIGHT


@contextmanager
def flag_left_open() -> Iterator[dict[str, Any]]:
    """After an error the listener has gone, and its flag says that it listens."""

    def careless(ctx: Any, state: Any) -> Any:
        ctx.queue.is_open = True
        yield {**SHORT, "also": [(3.6, 30, "broker", "refused")]}
        try:
            found = ctx.broker.await_message(ctx.shard, listen_module.LISTEN_MS)
        except BrokerError:
            ctx.queue.emptied.listener = lambda: None
            yield Round.IDLE
            return
        ctx.queue.is_open = False
        if found:
            ctx.queue.arrived.set()
        yield Round.IDLE

    def never(self: ShardJobs, *_: Any) -> Wait:
        return Wait() if self.engine.ctx.queue.emptied.listener is not self.jobs["listen"].wake else Wait(0.0, 0.0)

    from celery_wheel.engine import engine as engine_module

    with (
        mock.patch.object(engine_module, "listen", careless),
        mock.patch.object(ShardJobs, "_after_listen", never),
        mock.patch.object(pool_module, "IDLE_S", 10**9),
    ):
        yield FORTNIGHT


@contextmanager
def lease_not_renewed_after_a_step_of_the_clock() -> Iterator[dict[str, Any]]:
    """While the wall clock is disputed, no lease is renewed."""
    tend = Engine._tend

    def careless(self: Engine) -> Any:
        if self.clock.disputed_ms:
            self.clock.check(self.ctx.second_clock_ms)
            return iter((Round.IDLE,))
        return tend(self)

    with mock.patch.object(Engine, "_tend", careless):
        yield MONTH


@contextmanager
def gauge_of_the_clock_that_sticks() -> Iterator[dict[str, Any]]:
    """A clock that was disputed once is shown as disputed for ever."""
    compare = DueClock._compare

    def careless(self: DueClock, *arguments: Any) -> Any:
        before = self.disputed_ms
        found = compare(self, *arguments)
        self.disputed_ms = self.disputed_ms or before
        return found

    with mock.patch.object(DueClock, "_compare", careless):
        yield MONTH


@contextmanager
def line_for_each_round() -> Iterator[dict[str, Any]]:
    """An error of a call that is tried again is logged each time."""
    with mock.patch.object(retry, "LOG_INTERVAL_S", 0.0):
        yield {**SHORT, "also": [(3.6, 30, "store", "refused")]}


@contextmanager
def line_of_balance_for_each_round() -> Iterator[dict[str, Any]]:
    """The sign of life says twice a second that the store does not answer."""

    def careless(self: Balance) -> None:
        try:
            self.once()
        except Exception as error:
            logging.getLogger("celery_wheel.scheduler.share").warning("%s", error, extra={"action": "balance"})

    with mock.patch.object(Balance, "_try_once", careless):
        yield {**SHORT, "also": [(3.6, 30, "store", "refused")]}


@contextmanager
def connection_for_each_failure() -> Iterator[dict[str, Any]]:
    """The store is opened anew after each failure, and the former connection stays open."""
    look = Sources.look

    def careless(self: Sources) -> bool:
        found = look(self)
        if not found:
            self._process_store = ProcessStore(self._process_store._conf)
        return found

    with mock.patch.object(Sources, "look", careless):
        yield {**MONTH, "also": [(day + 0.6, 5, "store", "refused") for day in range(1, 29)]}


@contextmanager
def bell_that_stays_open() -> Iterator[dict[str, Any]]:
    """Each look at the inbox listens anew."""

    def careless(self: InboxWatch) -> Wait:
        self._bell = None
        return run(self)

    run = InboxWatch._run
    with mock.patch.object(InboxWatch, "_run", careless):
        yield SHORT


@contextmanager
def thread_for_each_takeover() -> Iterator[dict[str, Any]]:
    """The sources of a former holder are not stopped: a thread more for each takeover."""
    with mock.patch.object(Sources, "stop"):
        yield MONTH


@contextmanager
def threads_that_outlive_a_stop() -> Iterator[dict[str, Any]]:
    """The threads of a pool do not end with it."""
    with mock.patch.object(Pool, "close"):
        yield MONTH


@contextmanager
def timers_by_the_wall_clock() -> Iterator[dict[str, Any]]:
    """The pool waits by the wall clock, which a time service sets back."""

    def now_s() -> float:
        return pool_module.time.time()

    with mock.patch.object(Pool, "now_s", staticmethod(now_s)):
        yield MONTH


@contextmanager
def standby_that_gives_up() -> Iterator[dict[str, Any]]:
    """A scheduler that has found the shard held does not try again."""
    stand_by = Engine._stand_by

    def careless(self: Engine) -> None:
        stand_by(self)
        self.wanted = False

    with mock.patch.object(Engine, "_stand_by", careless):
        yield SHORT


@contextmanager
def history_that_is_never_forgotten() -> Iterator[dict[str, Any]]:
    """Housekeeping finds nothing to do."""
    with mock.patch.object(Engine, "keep_house", side_effect=lambda: iter((Round.IDLE,))):
        yield {**FORTNIGHT, "month": 13}


@contextmanager
def announcement_that_is_not_tried_again() -> Iterator[dict[str, Any]]:
    """A result backend that was away is not asked again."""
    with mock.patch.object(RevokedState, "_is_given_up", return_value=True):
        yield {**SHORT, "also": [(3.6, 60, "result backend", "refused")]}


@contextmanager
def report_that_is_dropped() -> Iterator[dict[str, Any]]:
    """The end of a run that the broker did not take is not sent again."""
    publish = reporter_module.report_of

    def careless(self: Reporter, header: dict[str, Any]) -> None:
        with self._changed:
            self._kept.append(header)
        with suppress(BrokerError):
            self._forwarder.publish(publish(header))
        self._kept.clear()

    with mock.patch.object(Reporter, "put", careless):
        yield FORTNIGHT


@contextmanager
def child_that_is_not_started_again() -> Iterator[dict[str, Any]]:
    """A process that the system did not start once is not tried again."""
    note_end = Supervisor._note_end

    def careless(self: Supervisor, one: Any, end: str, now_s: float, exit_code: int | None = None) -> None:
        note_end(self, one, end, now_s, exit_code)
        if exit_code is None:
            one.start_s = 1e9

    with mock.patch.object(Supervisor, "_note_end", careless):
        yield SHARED


@contextmanager
def children_that_end_without_a_pause() -> Iterator[dict[str, Any]]:
    """A process that ends at once is started again at each tick, and each end is a line."""

    def careless(self: RetryLog, level: int, cause: str, message: str, *args: Any, **options: Any) -> None:
        self._logger.log(level, message, *args, **options)

    with (
        mock.patch.object(supervisor_module, "BACK_OFF_MOST_S", supervisor_module.BACK_OFF_FIRST_S),
        mock.patch.object(RetryLog, "write", careless),
    ):
        yield SHARED


@contextmanager
def shard_that_is_never_released() -> Iterator[dict[str, Any]]:
    """A scheduler keeps what it has, also where another one has come back."""

    def careless(*arguments: Any) -> Share:
        return Share(take=share(*arguments).take)

    share = share_module.share
    with mock.patch.object(share_module, "share", careless):
        yield SHARED


@contextmanager
def sign_of_life_that_stays() -> Iterator[dict[str, Any]]:
    """A scheduler that has died counts for ever, and its share is left free."""
    with mock.patch.object(share_module, "SILENT_MS", 10**15):
        yield SHARED


@contextmanager
def node_that_listens_once() -> Iterator[dict[str, Any]]:
    """A control node that has lost its broker stays away."""
    serve = Node._serve

    def careless(self: Node) -> None:
        try:
            serve(self)
        except OSError:
            self._stop.wait()

    with mock.patch.object(Node, "_serve", careless):
        yield {**FORTNIGHT, "month": 30, "deep_s": 60.0}


@contextmanager
def consumer_that_is_not_opened_again() -> Iterator[dict[str, Any]]:
    """The server closes the channel of a consumer, and its connection is taken for one that still consumes."""
    with mock.patch.object(AmqpIngress, "_disconnect"):
        yield ON_RABBITMQ


PLANTED: list[Plant] = [
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", None) == __name__
    and not name.startswith("_")
    and name != "Plant"
]
