"""The engine of one shard: a deterministic object over (clock, store, broker); it has no thread of its own.

::

    tend      clock ─ acquire ─ adopt ─ renew      who holds the shard, and the snapshot
    ingest    peek ─ compare ─ reserve ─ commit ─ place ─ trim
    load      reach ─ edge moves ─ slice ─ place
    dispatch  reap ─ take ─ guard ─ publish ─ confirm
    settle    what was confirmed is committed
    announce  what was cancelled is told to whoever keeps the books of tasks
    forget    history beyond its retention

Each activity is a generator: one round of it, with a ``yield`` between every two steps that a crash, a
lost answer or another activity can come between. A step is one call to the store or the broker, or one
section under the term's lock, never both. The threads of ``runner`` run the rounds to their end; the
simulation interleaves the same generators from a seed, and abandons them where it wants a crash.

Whatever goes wrong, one of two things is done about it:

    the broker did not answer       the round is given up; the same chunk or peek is tried again later
    anything else                   the term ends: its memory is dropped, and the shard is adopted anew
                                    under a new epoch, if no other holds it by then
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_wheel.engine.adoption import Adoption
from celery_wheel.engine.announce import announce
from celery_wheel.engine.clock_watch import ClockWatch
from celery_wheel.engine.context import Context, OnWithdrawn, Round, RoundSteps, Steps
from celery_wheel.engine.dispatch import Dispatcher
from celery_wheel.engine.ingest import ingest
from celery_wheel.engine.limits import Limits
from celery_wheel.engine.load import load
from celery_wheel.engine.port import Broker
from celery_wheel.engine.settle import settle
from celery_wheel.engine.stamps import RevokedStamps
from celery_wheel.engine.stats import Stats
from celery_wheel.engine.term import Term
from celery_wheel.errors import BrokerError, Fenced, GuardTripped, OffsetLost, RequestWithdrawn, StoreError, TermEnded
from celery_wheel.store.model import Position
from celery_wheel.store.port import Store
from celery_wheel.timing import Clock

logger = logging.getLogger(__name__)

#: A broker that stays away is mentioned this often.
SAY_AGAIN_MS = 60_000

#: Who asked for an answer waits a few seconds for it.
ANSWERS_KEPT_MS = 600_000


class Engine:
    def __init__(
        self,
        shard: int,
        holder: str,
        store: Store,
        broker: Broker,
        clock: Clock,
        limits: Limits | None = None,
        *,
        on_withdrawn: OnWithdrawn | None = None,
        stamps: RevokedStamps | None = None,
    ) -> None:
        limits = limits or Limits()
        self.holder = holder
        self.term: Term | None = None
        #: Whether this engine is the shard's holder as far as it knows; a term that ended in doubt leaves it so.
        self.held = False
        #: Whether it may take the shard, or keep it: what ``share`` says.
        self.wanted = True
        self._stands_by = False
        self._quiet_until_ms = clock.monotonic_ms()
        self._ctx = Context(shard, store, broker, clock, limits, on_withdrawn=on_withdrawn)
        if stamps is not None:
            self._ctx.stamps = stamps
        self._watch = ClockWatch(clock, max_skew_ms=limits.max_clock_skew_ms, max_step_ms=limits.max_clock_step_ms)
        self._dispatcher = Dispatcher(self._ctx, self._watch)

    @property
    def shard(self) -> int:
        return self._ctx.shard

    @property
    def stats(self) -> Stats:
        return self._ctx.stats

    @property
    def wake(self) -> threading.Event:
        """Set when dispatch may have more to do than ``wait_ms`` said."""
        return self._ctx.wake

    @property
    def unsettled(self) -> threading.Event:
        """Set when ``settle`` has something to do."""
        return self._ctx.unsettled

    @property
    def untold(self) -> threading.Event:
        """Set when ``announce`` has something to do."""
        return self._ctx.untold

    def wait_ms(self) -> int:
        return self._dispatcher.wait_ms(self.term)

    # -- rounds ------------------------------------------------------------------------------------

    def tend(self) -> RoundSteps:
        return self._round(self._tend(), self.term)

    def ingest(self) -> RoundSteps:
        return self._held(lambda term: ingest(self._ctx, term))

    def load(self) -> RoundSteps:
        return self._held(lambda term: load(self._ctx, term))

    def dispatch(self) -> RoundSteps:
        return self._held(self._dispatcher.round)

    def settle(self) -> RoundSteps:
        return self._held(lambda term: settle(self._ctx, term))

    def announce(self) -> RoundSteps:
        return self._held(lambda term: announce(self._ctx, term))

    def forget(self) -> RoundSteps:
        return self._held(self._forget)

    def release(self) -> RoundSteps:
        """The last round of a process that stops by itself."""
        return self._round(self._release(), self.term)

    def _held(self, activity: Callable[[Term], RoundSteps]) -> RoundSteps:
        """A round of an activity of the holder; nothing to be done while the shard is not held."""
        term = self.term
        if term is None:
            return iter((Round.IDLE,))
        return self._round(activity(term), term)

    def _round(self, steps: RoundSteps, term: Term | None) -> RoundSteps:
        """Errors end the round or the term, never the engine."""
        try:
            yield from steps
        except BrokerError as error:
            self._say_broker_error(error)
            yield Round.FAILED
        except TermEnded:
            yield Round.FAILED
        except (Fenced, OffsetLost, GuardTripped, StoreError, RequestWithdrawn) as error:
            self.stats.store_errors += isinstance(error, StoreError)
            self._end(term, str(error))
            yield Round.FAILED

    def _say_broker_error(self, error: BrokerError) -> None:
        """The first of a row is a warning, and then one a minute; the others are for those who look closely."""
        self.stats.broker_errors += 1
        now_ms = self._ctx.clock.monotonic_ms()
        level = logging.DEBUG if now_ms < self._quiet_until_ms else logging.WARNING
        if level == logging.WARNING:
            self._quiet_until_ms = now_ms + SAY_AGAIN_MS
        logger.log(level, "%s", error, extra={"action": "broker_error", "shard": self.shard})

    def _end(self, term: Term | None, reason: str) -> None:
        """Drop what is in memory because it is in doubt."""
        logger.error(
            "shard %d: %s; what is in memory is dropped and the shard is adopted anew",
            self.shard,
            reason,
            extra={"action": "term_ended", "shard": self.shard, "epoch": term.epoch if term else None},
        )
        if term is not None:
            self._drop(term, reason)

    def _drop(self, term: Term, reason: str) -> None:
        term.end(reason)
        if self.term is term:
            self.term = None
            self._ctx.broker.leave(self.shard, term.epoch)

    # -- tend --------------------------------------------------------------------------------------

    def _tend(self) -> RoundSteps:
        ctx = self._ctx
        fit = self._watch.compare(self._second_clock_ms)
        yield "clock compared"
        term, now_ms, lease_until_ms = self.term, ctx.clock.now_ms(), ctx.clock.monotonic_ms() + ctx.limits.lease_ms
        if not fit:
            yield from self._stand_down("the clock is not fit to hold a shard")
            yield Round.FAILED
        elif not self.wanted:
            yield from self._stand_down("another scheduler is to have it")
            yield Round.IDLE
        elif term is None:
            yield from self._adopt(now_ms, lease_until_ms)
        else:
            with term.active():
                snapshot, confirmed = ctx.stats.snapshot(term, self._watch, now_ms), term.confirmed()
            yield "snapshot taken"
            if ctx.broker.keeps_offset:
                self._compare_offsets(term, confirmed)
            yield "offsets compared"
            ctx.store.renew(ctx.shard, term.epoch, now_ms, ctx.limits.lease_ms, snapshot)
            term.lease_until_ms = lease_until_ms
            yield Round.IDLE

    def _stand_by(self) -> None:
        self.held = False
        if not self._stands_by:
            self._stands_by = True
            logger.info(
                "shard %d is held by another scheduler; this one stands by",
                self.shard,
                extra={"action": "stand_by", "shard": self.shard},
            )

    def _second_clock_ms(self) -> int | None:
        """The broker's clock, or the store's where the broker has none.

        Whoever does not answer says nothing against this clock; what holds the lease is asked next in any case.
        """
        now_ms = None
        try:
            now_ms = self._ctx.broker.now_ms()
        except BrokerError:
            self.stats.broker_errors += 1
        try:
            return self._ctx.store.now_ms() if now_ms is None else now_ms
        except StoreError:
            self.stats.store_errors += 1
            return None

    def _compare_offsets(self, term: Term, confirmed: dict[int, Position]) -> None:
        """See that the broker still has what it confirmed, also when there is nothing to publish by which to see it."""
        try:
            offsets = self._ctx.broker.adopt(self.shard, term.epoch)
        except BrokerError:
            self.stats.broker_errors += 1
            return
        for number, position in confirmed.items():
            if number not in offsets or offsets[number].offset < position:
                raise OffsetLost(f"the broker has lost the offset of lane {number}, which stood at {tuple(position)}")

    def _adopt(self, now_ms: int, lease_until_ms: int) -> RoundSteps:
        ctx = self._ctx
        epoch = ctx.store.acquire(ctx.shard, self.holder, now_ms, ctx.limits.lease_ms)
        yield "acquired"
        if epoch is None:
            self._stand_by()
            yield Round.IDLE
            return
        adoption = Adoption(ctx.shard, epoch, ctx.store, ctx.broker, ctx.limits, now_ms, ctx.clock.monotonic_ms())
        try:
            yield from adoption.steps()
        except BrokerError:
            # Another host may reach the broker: do not keep the shard from it.
            self.held = False
            ctx.broker.leave(ctx.shard, epoch)
            ctx.store.release(ctx.shard, epoch)
            raise
        term = adoption.term()
        term.stamps = ctx.stamps
        term.lease_until_ms = lease_until_ms
        yield "term made"
        self.stats.adoptions += 1
        self.stats.rollbacks += adoption.rollbacks
        self.term = term
        self.held = True
        self._stands_by = False
        ctx.wake.set()
        ctx.untold.set()
        logger.info(
            "shard %d is held by %s at epoch %d",
            ctx.shard,
            self.holder,
            epoch,
            extra={"action": "adopt", "shard": ctx.shard, "epoch": epoch},
        )
        yield Round.BUSY

    def _release(self) -> RoundSteps:
        yield from self._stand_down("this scheduler was asked to stop")
        yield Round.IDLE

    def _stand_down(self, reason: str) -> Steps:
        """End the term, and give the shard up at once so that a standby need not wait for the lease."""
        ctx, term = self._ctx, self.term
        self.held = False
        if term is None:
            return
        with term.active():
            settlement = term.settlement()
            term.end(reason)  # nothing may be confirmed after this settlement: it would put the hand back
        yield "settlement made"
        if settlement is not None:
            ctx.store.apply(ctx.shard, term.epoch, settlement.change)
        yield "settled"
        self._drop(term, reason)
        ctx.store.release(ctx.shard, term.epoch)
        logger.info(
            "shard %d is given up: %s",
            ctx.shard,
            reason,
            extra={"action": "release", "shard": ctx.shard, "epoch": term.epoch},
        )
        yield "released"

    # -- forget ------------------------------------------------------------------------------------

    def _forget(self, term: Term) -> RoundSteps:
        ctx, limits = self._ctx, self._ctx.limits
        now_ms = ctx.clock.now_ms()
        ctx.store.expire(ctx.shard, term.epoch, now_ms, now_ms - ANSWERS_KEPT_MS)
        yield "expired"
        before_ms = now_ms - limits.retention_ms
        most, only = limits.forget_count, limits.archived_only
        with term.history:
            gone = ctx.store.forget(ctx.shard, term.epoch, before_ms, limits.history_bytes, most, archived_only=only)
        ctx.stats.forgotten += gone
        yield "forgotten"
        yield Round.BUSY if gone else Round.IDLE
