"""Bugs of age, each planted by patching one thing, with the part of a year in which it shows.

Each of them lives for minutes unseen, and most of them for weeks: a test that ends a process after a minute finds none.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from celery_wheel.broker.amqp.edge import AmqpIngress
from celery_wheel.broker.amqp.publisher import AmqpPublisher
from celery_wheel.engine import engine as engine_module
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
from celery_wheel.store.schedule_model import RunReport
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

Part = dict[str, Any]
Plant = Callable[[], AbstractContextManager[Part]]
PLANTED: list[Plant] = []


def planted(bug: Callable[[], Iterator[Part]]) -> Plant:
    PLANTED.append(contextmanager(bug))
    return PLANTED[-1]


def replaces(owner: Any, name: str, part: Part, *also: tuple[float, float, str, str]) -> Callable[[Any], Plant]:
    """Plant a bug in place of a function of ``owner``, which it gets as its first argument; ``also`` are outages."""
    right = getattr(owner, name)

    def added(bug: Callable[..., Any]) -> Plant:
        @functools.wraps(bug)
        def plant() -> Iterator[Part]:
            with mock.patch.object(owner, name, lambda *args, **named: bug(right, *args, **named)):
                yield {**part, "also": also}

        return planted(plant)

    return added


def instead(bug: str, owner: Any, name: str, wrong: Any, part: Part, *also: tuple[float, float, str, str]) -> None:
    """Plant a bug by another attribute of ``owner``."""

    def plant() -> Iterator[Part]:
        with mock.patch.object(owner, name, wrong):
            yield {**part, "also": also}

    plant.__name__ = bug
    planted(plant)


# An error of a call that is tried again is logged each time.
instead("line_for_each_round", retry, "LOG_INTERVAL_S", 0.0, SHORT, (3.6, 30, "store", "refused"))
# The sources of a former holder are not stopped, or the threads of a pool do not end with it.
instead("thread_for_each_takeover", Sources, "stop", lambda *_, **__: None, MONTH)
instead("threads_that_outlive_a_stop", Pool, "close", lambda *_, **__: None, MONTH)
# The pool waits by the wall clock, which a time service sets back.
instead("timers_by_the_wall_clock", Pool, "now_s", lambda _: pool_module.time.time(), MONTH)
# Housekeeping finds nothing to do.
_nothing_to_do = lambda _: iter((Round.IDLE,))  # noqa: E731
instead("history_that_is_never_forgotten", Engine, "keep_house", _nothing_to_do, {**FORTNIGHT, "month": 13})
# A result backend that was away is not asked again.
_away = (3.6, 60, "result backend", "refused")
instead("announcement_that_is_not_tried_again", RevokedState, "_is_given_up", lambda *_, **__: True, SHORT, _away)
# A scheduler that has died counts for ever, and its share is left free.
instead("sign_of_life_that_stays", share_module, "SILENT_MS", 10**15, SHARED)
# The server closes the channel of a consumer, and its connection is taken for one that still consumes.
instead("consumer_that_is_not_opened_again", AmqpIngress, "_disconnect", lambda *_, **__: None, ON_RABBITMQ)


@planted
def power_without_a_cap() -> Iterator[Part]:
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


@planted
def wait_without_a_bound() -> Iterator[Part]:
    """The wait is doubled for ever: an outage of an hour is followed by one of another hour."""

    def failed(self: Backoff) -> float:
        wait_s, self._next_s = self._next_s, self._next_s * 2
        return wait_s

    with mock.patch.object(Backoff, "failed", failed), mock.patch.object(pool_module, "IDLE_S", 10**9):
        yield {**SHORT, "deep_s": 2_400.0, "also": [(3.6, 4_000, "broker", "refused")]}


@replaces(Stats, "committed", FORTNIGHT)
def list_that_is_never_purged(right: Any, self: Stats, *arguments: Any) -> None:
    """Each commit leaves an item in a list of the engine."""
    self.__dict__.setdefault("history", []).append(arguments)
    right(self, *arguments)


def _deaf(signal_of: Callable[[ShardJobs], Signal]) -> Callable[..., None]:
    right: Any = ShardJobs.__init__

    def careless(self: ShardJobs, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **options)
        signal_of(self).listener = lambda: None

    return careless


# A row that is accepted late does not wake dispatch; the broker tells of a message, and ingest is not woken.
instead("wake_that_is_lost", ShardJobs, "__init__", _deaf(lambda jobs: jobs.engine.ctx.wake), SHORT)
instead(
    *("message_that_wakes_nobody", ShardJobs, "__init__"),
    *(_deaf(lambda jobs: jobs.engine.ctx.queue.arrived), {**SHORT, "seed": 4}),
)


@replaces(ShardJobs, "_after_dispatch", SHORT)
def timer_that_is_not_set_again(_: Any, self: ShardJobs, round_: Round, took_s: float) -> Wait:
    """Dispatch waits for a wake, and no longer for the next due time."""
    return Wait(0.0, 0.0) if round_ is Round.BUSY else Wait()


@replaces(ShardJobs, "_run", SHORT, (2 + NOON, 30, "store", "refused"))
def job_that_ends_after_a_failure(right: Any, self: ShardJobs, name: str, *arguments: Any) -> Wait:
    """A job that has failed is not run again."""
    wait: Wait = right(self, name, *arguments)
    if name == "prefetch" and wait.least_s == wait.most_s:
        self.jobs[name].cancel()
    return wait


@planted
def job_that_dies_silently() -> Iterator[Part]:
    """A job meets an error that it does not expect, and nobody is told."""
    ingest = Engine.ingest

    def fragile(self: Engine) -> Any:
        for step in ingest(self):
            if step is Round.FAILED:
                raise LookupError("simulated")
            yield step

    with mock.patch.object(Engine, "ingest", fragile), mock.patch.object(Pool, "fail"):
        yield {**SHORT, "also": [(3.6, 30, "broker", "refused")]}


@planted
def flag_left_open() -> Iterator[Part]:
    """After an error the listener has gone, and its flag says that it listens."""

    def careless(ctx: Any, state: Any) -> Any:
        ctx.queue.is_open = True
        yield "listens"
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

    with (
        mock.patch.object(Engine, "listen", engine_module._holding(careless)),
        mock.patch.object(ShardJobs, "_after_listen", never),
        mock.patch.object(pool_module, "IDLE_S", 10**9),
    ):
        yield {**SHORT, "also": [(3.6, 30, "broker", "refused")]}


@replaces(Engine, "_tend", {**MONTH, "seed": 2})
def lease_not_renewed_after_a_step_of_the_clock(right: Any, self: Engine) -> Any:
    """While the wall clock is disputed, no lease is renewed."""
    if self.clock.disputed_ms:
        self.clock.check(self.ctx.second_clock_ms)
        return iter((Round.IDLE,))
    return right(self)


@replaces(DueClock, "_compare", MONTH)
def gauge_of_the_clock_that_sticks(right: Any, self: DueClock, *arguments: Any) -> Any:
    """A clock that was disputed once is shown as disputed for ever."""
    before, found = self.disputed_ms, right(self, *arguments)
    self.disputed_ms = self.disputed_ms or before
    return found


@replaces(Balance, "_try_once", SHORT, (3.6, 30, "store", "refused"))
def line_of_balance_for_each_round(_: Any, self: Balance) -> None:
    """The sign of life says twice a second that the store does not answer."""
    try:
        self.once()
    except Exception as error:
        logging.getLogger("celery_wheel.scheduler.share").warning("%s", error, extra={"action": "balance"})


@replaces(Sources, "look", MONTH, *((day + 0.6, 5, "store", "refused") for day in range(1, 29)))
def connection_for_each_failure(right: Any, self: Sources) -> bool:
    """The store is opened anew after each failure, and the former connection stays open."""
    found: bool = right(self)
    if not found:
        self._process_store = ProcessStore(self._process_store._conf)
    return found


@replaces(InboxWatch, "_run", SHORT)
def bell_that_stays_open(right: Any, self: InboxWatch) -> Any:
    """Each look at the inbox listens anew."""
    self._bell = None
    return right(self)


@replaces(Engine, "_stand_by", SHORT)
def standby_that_gives_up(right: Any, self: Engine) -> None:
    """A scheduler that has found the shard held does not try again."""
    right(self)
    self.wanted = False


@replaces(Reporter, "put", FORTNIGHT)
def report_that_is_dropped(_: Any, self: Reporter, report: RunReport) -> None:
    """The end of a run that the broker did not take is not sent again."""
    with self._changed:
        self._kept.append(report)
    with suppress(BrokerError):
        self._forwarder.publish(reporter_module.message_of(report), 0)
    self._kept.clear()


@replaces(Supervisor, "_note_end", SHARED)
def child_that_is_not_started_again(
    right: Any, self: Supervisor, one: Any, end: str, now_s: float, exit_code: int | None = None
) -> None:
    """A process that the system did not start once is not tried again."""
    right(self, one, end, now_s, exit_code)
    if exit_code is None:
        one.start_s = 1e9


@planted
def children_that_end_without_a_pause() -> Iterator[Part]:
    """A process that ends at once is started again at each tick, and each end is a line."""

    def careless(self: RetryLog, level: int, cause: str, message: str, *args: Any, **options: Any) -> None:
        self._logger.log(level, message, *args, **options)

    with (
        mock.patch.object(supervisor_module, "BACK_OFF_MOST_S", supervisor_module.BACK_OFF_FIRST_S),
        mock.patch.object(RetryLog, "write", careless),
    ):
        yield SHARED


@replaces(share_module, "share", SHARED)
def shard_that_is_never_released(right: Any, *arguments: Any) -> Share:
    """A scheduler keeps what it has, also where another one has come back."""
    return Share(take=right(*arguments).take)


@replaces(Node, "_serve", {**FORTNIGHT, "month": 30, "deep_s": 60.0})
def node_that_listens_once(right: Any, self: Node) -> None:
    """A control node that has lost its broker stays away."""
    try:
        right(self)
    except OSError:
        self._stop.wait()


@replaces(AmqpPublisher, "_pop_settled", ON_RABBITMQ)
def grouped_confirm_counted_as_one(right: Any, self: AmqpPublisher, tag: int, multiple: bool) -> Any:
    """One confirm of all messages up to a tag counts as that of one message: the others are sent again, marked."""
    return right(self, tag, False)
