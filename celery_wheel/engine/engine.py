"""The engine of one shard: a deterministic object over (clock, store, broker) that runs its activities in rounds.

An activity is a generator: one round of it, with a ``yield`` wherever a crash, a lost answer or another activity can
come between two steps. A step is one call to the store or the broker, or one section under the state's lock. The
threads of ``runner`` run each round to its end; the simulation interleaves the same generators by a seed.

An error has one of two consequences::

    no answer to a read, a publish or a renewal    the round ends and is tried again later; memory stays
    memory is in doubt: a commit without an        the state ends: its memory is dropped, and the shard is adopted anew
    answer, a fence, a lost offset, a broken       under a new epoch, unless another scheduler holds it by then
    invariant, a store that lost commits
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_wheel import errors
from celery_wheel.engine import release as releasing
from celery_wheel.engine.adoption import Adoption
from celery_wheel.engine.announce import announce
from celery_wheel.engine.delivery import delivery_to
from celery_wheel.engine.dispatch import dispatch, wait_ms
from celery_wheel.engine.due_clock import ClockReadings, DueClock
from celery_wheel.engine.housekeeping import keep_house
from celery_wheel.engine.ingest import ingest
from celery_wheel.engine.listen import listen
from celery_wheel.engine.port import Broker
from celery_wheel.engine.prefetch import prefetch
from celery_wheel.engine.recurring.occurrence import OccurrenceRenderer, OnOverlap
from celery_wheel.engine.round import (
    Context,
    LeaseCall,
    Limits,
    OnCancelled,
    OnPublished,
    Round,
    RoundSteps,
    ShardOf,
    Steps,
)
from celery_wheel.engine.settle import next_settlement, settle
from celery_wheel.engine.state.agenda import NEVER
from celery_wheel.engine.state.depths import Depths, depths_of
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.store.ports import Renewal, Store
from celery_wheel.timing import Clock, RetryLog
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Between two snapshots at least: every other renewal has one.
SHOW_MS = 900


def _holding(activity: Callable[[Context, ShardState], RoundSteps]) -> Callable[[Engine], RoundSteps]:
    """Return the method for an activity of the holder: a round of it; an idle round where there is no state."""

    def begin(engine: Engine) -> RoundSteps:
        state = engine.state
        return iter((Round.IDLE,)) if state is None else engine._round(activity(engine.ctx, state), state)

    return begin


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
        on_cancelled: OnCancelled | None = None,
        stamps: RevokedStamps | None = None,
        depths: Depths | None = None,
        renderer: OccurrenceRenderer | None = None,
        on_overlap: OnOverlap | None = None,
        on_published: OnPublished | None = None,
        shard_of: ShardOf | None = None,
        readings: ClockReadings | None = None,
        log: RetryLog | None = None,
    ) -> None:
        limits = limits or Limits()
        self.holder = holder
        self.state: ShardState | None = None
        #: Whether this engine may acquire or keep the shard (see ``scheduler.share``).
        self.wanted = True
        self._lease_until_ms: int | None = None  #: monotonic, less the margin; None where another may hold the shard
        self._shown_ms: int | None = None  #: monotonic: when the last snapshot was taken
        self._stands_by = False
        self._changing = threading.Lock()  #: held while ``state`` is compared and changed
        self.log = log or RetryLog(logger, lambda: clock.monotonic_ms() / 1_000)
        #: The only clock that the activities read.
        self.clock = DueClock(clock, tick_ms=limits.tick_ms, max_skew_ms=limits.max_clock_skew_ms, readings=readings)
        self.shard, self.store, self.delivery = shard, store, delivery_to(broker, self.clock)
        self.ctx = Context(
            shard,
            store,
            self.delivery,
            self.clock,
            limits,
            shard_of or (lambda _: shard),
            self.log,
            stamps=RevokedStamps() if stamps is None else stamps,
            depths=depths_of(limits.depths) if depths is None else depths,
            on_cancelled=on_cancelled,
            renderer=renderer,
            on_overlap=on_overlap,
            on_published=on_published,
        )
        self.stats = self.ctx.stats

    @property
    def held(self) -> bool:
        """Whether this engine is certainly the holder, also while it adopts: its lease is not over, with a margin."""
        return self._lease_until_ms is not None and self.ctx.clock.monotonic_ms() < self._lease_until_ms

    def wait_ms(self, *, was_busy: bool = False) -> int:
        """Return how long dispatch may wait, after a round that was busy or idle."""
        return wait_ms(self.ctx, self.state, was_busy=was_busy)

    def release_wait_ms(self) -> int:
        """Return how long the release of waiting rows may wait."""
        return releasing.wait_ms(self.ctx, self.state)

    def ingest_wait_ms(self) -> int:
        """Return how long ingest may wait for the next schedule."""
        state = self.state
        if state is None or self.ctx.renderer is None:
            return NEVER
        return state.agenda.wait_ms(self.clock.now_ms(), self.clock.monotonic_ms())

    # -- rounds ------------------------------------------------------------------------------------

    def tend(self) -> RoundSteps:
        return self._round(self._tend(), self.state)

    ingest = _holding(ingest)
    listen = _holding(listen)
    prefetch = _holding(prefetch)
    dispatch = _holding(dispatch)
    settle = _holding(settle)
    release_rows = _holding(releasing.release)
    announce = _holding(announce)
    keep_house = _holding(keep_house)

    def release(self) -> RoundSteps:
        """Return the last round of a process that stops: it settles and gives the shard up."""
        return self._round(self._release(), self.state)

    def _round(self, steps: RoundSteps, state: ShardState | None) -> RoundSteps:
        """Run a round; an error ends the round or the state, never the engine."""
        try:
            yield from steps
        except errors.BrokerError as error:
            self.stats.add(broker_errors=1)
            self._log_repeated(error, "broker_error")
            yield Round.FAILED
        except errors.EpochEnded:
            yield Round.FAILED
        except (
            *(errors.Fenced, errors.OffsetLost, errors.InvariantBroken),
            *(errors.CommitInDoubt, errors.StoreRolledBack),
        ) as error:
            self.stats.add(
                store_errors=isinstance(error, errors.StoreError), guard_trips=isinstance(error, errors.InvariantBroken)
            )
            if isinstance(error, errors.Fenced) and self.state is state:
                if state is not None:
                    state.end(str(error))  # before the lease: ``renewed`` notes none of a state that has ended
                self._lease_until_ms = None
            self._end(state, str(error))
            yield Round.FAILED
        except (errors.StoreError, errors.LeaseExpired, errors.StoreConflict) as error:
            self.stats.add(store_errors=isinstance(error, errors.StoreError))
            if state is not None and isinstance(error, errors.StoreConflict):
                self._end(state, str(error))  # another copy of the store has the shard in the broker
            else:
                self._log_repeated(error, "waits")
            yield Round.FAILED

    def _log_repeated(self, error: Exception, action: str) -> None:
        self.log.write_error(error, extra={"action": action, "shard": self.shard})

    def _end(self, state: ShardState | None, reason: str) -> None:
        """End a state whose memory is in doubt. Several threads may find the doubt; the first logs it as an error."""
        level = logging.ERROR if state is None or self.state is state else logging.DEBUG
        logger.log(
            level,
            "shard %d: %s; the memory of the shard is dropped and the shard is adopted anew",
            self.shard,
            reason,
            extra={"action": "state_ended", "shard": self.shard, "epoch": state.epoch if state else None},
        )
        if state is not None:
            self._drop(state, reason)

    def _drop(self, state: ShardState, reason: str) -> None:
        state.end(reason)
        with self._changing:  # another thread may have ended it too, and may have adopted the next state by now
            if ended_here := self.state is state:
                self.state, self.ctx.accepted = None, state.alone
        if ended_here:
            self.ctx.broker.leave(self.shard, state.epoch)

    # -- tend --------------------------------------------------------------------------------------

    def _tend(self) -> RoundSteps:
        ctx = self.ctx
        fit = self._is_fit()
        yield "clock compared"
        state, lease_until_ms = self.state, ctx.clock.monotonic_ms() + ctx.limits.lease_ms
        if not fit:
            yield from self._stand_down("its due time is too far from the second clock")
            yield Round.FAILED
        elif not self.wanted:
            yield from self._stand_down("it is the share of another scheduler")
            yield Round.IDLE
        elif state is None:
            yield from self._adopt(lease_until_ms)
        else:
            snapshot = self._snapshot(state)
            yield "snapshot taken"
            yield from self._verify(state)
            lease = ctx.clock.wall_ms(), ctx.limits.lease_ms
            ctx.store.renew(ctx.shard, state.epoch, *lease, snapshot, state.accepted)
            self.renewed(state, lease_until_ms)
            yield Round.IDLE

    def _is_fit(self) -> bool:
        """Compare the clocks, and keep the broker's connections alive: engines share a reading, but no connection."""
        self.ctx.broker.keep_alive()
        return self.clock.check(self.ctx.second_clock_ms)

    def lease_call(self) -> LeaseCall | None:
        """Return the renewal of the lease, to be made with those of other shards; None where ``tend`` has to decide."""
        ctx, state, lease_until_ms = self.ctx, self.state, self.clock.monotonic_ms() + self.ctx.limits.lease_ms
        if state is None or not self.wanted or not self.held or not self._is_fit():
            return None
        renewal = Renewal(ctx.shard, state.epoch, self._snapshot(state), state.accepted)
        return LeaseCall(state, lease_until_ms, renewal)

    def renewed(self, state: ShardState, lease_until_ms: int) -> None:
        """Note that the store has made a renewal; it is worth nothing where the state has ended meanwhile."""
        with state.lock:
            if state.ended is None:
                state.renewed(lease_until_ms, self.ctx.limits.lease_ms)
                self._lease_until_ms = state.lease_until_ms - state.lease_margin_ms

    def _snapshot(self, state: ShardState) -> dict[str, object] | None:
        """Return the figures that the pages show, or None within SHOW_MS: to store them costs as much as to renew."""
        now_ms = self.clock.monotonic_ms()
        if self._shown_ms is not None and now_ms < self._shown_ms + SHOW_MS:
            return None
        self._shown_ms = now_ms
        groups = state.group_figures.read(self.clock)
        with state.lock:
            return self.ctx.stats.snapshot(state, self.clock, self.ctx.clock.now_ms(), groups)

    def _verify(self, state: ShardState) -> Steps:
        """Check that the broker still has the chunks that it confirmed, also while no row is due."""
        try:
            if self.held:  # a holder without its store gives no sign of life, which would keep others away
                self.ctx.delivery.verify(state)
        except errors.BrokerError:
            self.stats.add(broker_errors=1)
        yield "offsets verified"

    def _stand_by(self) -> None:
        self._lease_until_ms = None
        if not self._stands_by:
            self._stands_by = True
            extra = {"action": "stand_by", "shard": self.shard}
            logger.info("shard %d is held by another scheduler; this scheduler stands by", self.shard, extra=extra)

    def _adopt(self, lease_until_ms: int) -> RoundSteps:
        ctx = self.ctx
        epoch = ctx.store.acquire(ctx.shard, self.holder, ctx.clock.wall_ms(), ctx.limits.lease_ms)
        yield "acquired"
        if epoch is None:
            self._stand_by()
            yield Round.IDLE
            return
        adoption = Adoption(ctx, epoch)
        try:
            yield from adoption.steps()
        except (errors.BrokerError, errors.StoreConflict):
            # Another host may reach the broker, so the shard is released at once.
            self._lease_until_ms = None
            ctx.broker.leave(ctx.shard, epoch)
            ctx.store.release(ctx.shard, epoch)
            raise
        state = adoption.state()
        yield "state made"
        self.renewed(state, lease_until_ms)
        self.stats.add(
            adoptions=1, rollbacks=adoption.rollbacks, emptied=adoption.emptied, store_lost=adoption.store_lost
        )
        with self._changing:
            self.state = state
        self._stands_by = False
        ctx.wake.set()
        ctx.room.set()
        ctx.freed.set()
        ctx.unannounced.set()
        extra = {"action": "adopt", "shard": ctx.shard, "epoch": epoch}
        logger.info("shard %d is held by %s at epoch %d", ctx.shard, self.holder, epoch, extra=extra)
        yield Round.BUSY

    def _release(self) -> RoundSteps:
        yield from self._stand_down("this scheduler was asked to stop")
        yield Round.IDLE

    def _stand_down(self, reason: str) -> Steps:
        """End the state and release the shard at once, so that a standby need not wait for the lease to end."""
        ctx, state = self.ctx, self.state
        if state is None:
            self._lease_until_ms = None
            return
        with state.active():
            work = next_settlement(state, ctx.clock.now_ms())
            state.end(reason)  # a chunk confirmed after this settlement could have its offset moved back
        self._lease_until_ms = None
        yield "settlement made"
        try:
            if work is not None:
                ctx.store.apply(ctx.shard, state.epoch, work.change)
        except errors.StoreError:
            self._drop(state, reason)  # the state has ended, and would never be adopted again
            raise
        yield "settled"
        self._drop(state, reason)
        ctx.store.release(ctx.shard, state.epoch)
        extra = {"action": "release", "shard": ctx.shard, "epoch": state.epoch}
        logger.info("shard %d is given up: %s", ctx.shard, reason, extra=extra)
        yield "released"
