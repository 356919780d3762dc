"""Dispatch: what is due leaves in order, chunk by chunk, and the offset moves behind it.

::

    reap        what expired goes from the wheel to its lane's ready rows
    take        the next chunk, before every reservation; the watermark moves to its end: (…, watermark] is closed
    announce    where the broker keeps no offset: the store learns how far the chunk goes; rows of a destination that
                waits move to its lane
    guard       the store must have exactly the chunk's rows in (from, to]
    publish     messages and the broker's offset in one step: from → to
    confirm     the chunk is unsettled: ``settle`` tells the store, of many chunks at once

A chunk whose publishing was not answered stays in flight and is published again, the same rows over the same
range, before anything after it: the broker's offset tells whether it was done, and where it keeps none they are marked.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.clock_watch import ClockWatch
from celery_wheel.engine.context import Context, Round, RoundSteps, Steps
from celery_wheel.engine.lane import Chunk, Lane
from celery_wheel.engine.port import Published, Since, Verdict
from celery_wheel.engine.settle import settle_now
from celery_wheel.engine.term import Term
from celery_wheel.errors import Fenced, GuardTripped, Interrupted, OffsetLost
from celery_wheel.store.model import MAX_SEQ, Position

MAX_WAIT_MS = 1_000  #: a step of the clock or a suspended machine is noticed within this time


class Dispatcher:
    def __init__(self, ctx: Context, watch: ClockWatch) -> None:
        self._ctx = ctx
        self._watch = watch

    def round(self, term: Term) -> RoundSteps:
        ctx, result = self._ctx, Round.IDLE
        if self._watch.may_dispatch():
            with term.active():
                term.window.reap(term.lanes, self._horizon_ms())
                lanes = term.in_order()
            yield "reaped"
            for lane in lanes:
                if (yield from self._send(term, lane)):
                    result = Round.BUSY
        if result is Round.IDLE and not ctx.broker.keeps_offset and (yield from settle_now(ctx, term)):
            result = Round.BUSY
        yield result

    def _send(self, term: Term, lane: Lane) -> Generator[str, None, bool]:
        """One chunk of a lane, if there is one; returns whether there was."""
        ctx, limits = self._ctx, self._ctx.limits
        if lane.retry_at_ms > ctx.clock.monotonic_ms():
            return False
        if not lane.in_broker:
            ctx.broker.set_offset(ctx.shard, term.epoch, lane.number, lane.offset)
            lane.in_broker = True
            yield "lane opened in the broker"
        if lane.sent < lane.doubt and lane.in_flight is None:
            yield from self._doubt(term, lane)
        with term.active():
            times = ctx.clock.now_ms(), ctx.clock.monotonic_ms()
            chunk = term.take(lane, *times, limits.chunk_count, limits.chunk_bytes, limits.ahead_ms)
            since = lane.since(chunk) if chunk else None
        yield "taken"
        if chunk is None:
            return False
        if chunk.diverted or chunk.missed or not (chunk.announced or ctx.broker.keeps_offset):
            yield from settle_now(ctx, term, chunk)
        elif not ctx.broker.keeps_offset:
            self._fence(term)  # no commit of this round has: and this clock may have stood still with its machine
        self._guard(term, chunk)
        yield "guarded"
        now_ms = ctx.clock.now_ms()
        published = self._publish(term, chunk, now_ms, since)
        yield "published"
        with term.active():
            self._confirm(lane, chunk, published, now_ms)
        ctx.unsettled.set()
        return True

    def _doubt(self, term: Term, lane: Lane) -> Steps:
        """A former holder announced chunks and may have sent them: they leave again, marked, before anything else.

        What is not due yet waits: that holder was handing over what it had, or its clock was ahead.
        """
        ctx, limits = self._ctx, self._ctx.limits
        place, upto = (ctx.shard, lane.number, lane.sent), min(lane.doubt, Position(self._horizon_ms(), MAX_SEQ))
        if upto <= lane.sent:
            return
        to = ctx.store.reach(*place, upto, limits.chunk_count, limits.chunk_bytes)
        rows = ctx.store.slice(*place, to)
        if to < lane.doubt:
            if not rows:
                return
            to = rows[-1].position  # not "now": an empty chunk a round would leave
        yield "in doubt"
        with term.active():
            lane.doubtful(rows, to)

    def _horizon_ms(self) -> int:
        """What is due up to here may leave."""
        return self._ctx.clock.now_ms() + self._ctx.limits.ahead_ms

    def _confirm(self, lane: Lane, chunk: Chunk, published: Published, now_ms: int) -> None:
        ctx = self._ctx
        chunk.failed.update(published.failed)
        # Of the queues behind an exchange some may have taken what another refused: it is there already, then.
        chunk.redelivered |= any(row.exchange for row in chunk.rows if row.id in published.refused)
        if published.refused and lane.refusing:
            lane.refuse(chunk, published.refused, ctx.clock.monotonic_ms())
            return
        lane.confirm(chunk, now_ms, published.refused)
        rows = [row for row in chunk.rows if row.id not in published.refused] if published.refused else chunk.rows
        ctx.stats.dispatched_chunk(rows, len(chunk.failed), now_ms)
        ctx.stats.refused += len(published.refused)

    def _guard(self, term: Term, chunk: Chunk) -> None:
        ctx = self._ctx
        stored = ctx.store.count(ctx.shard, chunk.lane, chunk.from_, chunk.to)
        if stored != len(chunk.rows):
            self._fence(term)
            ctx.stats.guard_trips += 1
            raise GuardTripped(
                f"the store has {stored} rows after {tuple(chunk.from_)} up to {tuple(chunk.to)} in lane "
                f"{chunk.lane}, the chunk has {len(chunk.rows)}; nothing of it has left, the window is rebuilt; "
                "this is a defect, please report it"
            )

    def _fence(self, term: Term) -> None:
        shard = self._ctx.shard
        if self._ctx.store.state(shard).epoch != term.epoch:
            raise Fenced(f"another holder has taken shard {shard}; nothing more leaves from here")

    def _publish(self, term: Term, chunk: Chunk, now_ms: int, since: Since | None) -> Published:
        ctx = self._ctx
        if not ctx.broker.keeps_offset and ctx.clock.monotonic_ms() >= term.lease_until_ms:
            # Nobody else would see it: this process was suspended, or the store did not answer for so long.
            raise Fenced(f"the lease of shard {ctx.shard} has run out; another holder may have it by now")
        redelivered = chunk.redelivered or term.lanes[chunk.lane].redelivered
        try:
            published = ctx.broker.publish(
                ctx.shard, term.epoch, chunk.lane, chunk.from_, chunk.to, chunk.left(), now_ms, since, redelivered
            )
        except Interrupted as error:
            chunk.taken |= error.confirmed
            chunk.redelivered = True
            raise
        if published.verdict is Verdict.FENCED:
            raise Fenced(f"another holder adopted shard {ctx.shard} in the broker; nothing more leaves from here")
        if published.verdict in (Verdict.ROLLED_BACK, Verdict.MISSING):
            raise OffsetLost(f"the broker's offset of lane {chunk.lane} is {published.verdict.value}")
        return published

    def wait_ms(self, term: Term | None) -> int:
        """How long the next round may wait, if nothing wakes it before."""
        if term is None:
            return MAX_WAIT_MS
        clock = self._ctx.clock
        monotonic_ms = clock.monotonic_ms()
        with term.lock:
            due_ms = term.next_due_ms(monotonic_ms)
            retries_ms = [
                wait
                for lane in term.lanes.values()
                if (wait := lane.retry_at_ms - monotonic_ms) > 0 or lane.in_flight is not None
            ]
        if self._watch.halted:
            return MAX_WAIT_MS
        wait_ms = MAX_WAIT_MS if due_ms is None else due_ms - clock.now_ms()
        return max(0, min(MAX_WAIT_MS, wait_ms, *retries_ms))
