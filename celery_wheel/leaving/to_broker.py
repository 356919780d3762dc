"""Into the tasks' own queues, with their eta, as Celery itself would have sent them.

::

    take in ─► load ─ dispatch ─ settle, with all that waits counted as due ─► again, until nothing is left
                          │
                          └─ publish: headers get their eta back, and the mark that keeps rescue from taking them
    then       rows that left before they were due are laid to rest as "moved", and the offset comes back to now

It is the engine that dispatches, by its own rules: on Redis exactly once, elsewhere what was in doubt when a drain was
killed comes again with ``wheel_redelivered``; what a queue refuses is waited for; what has nowhere to go is rejected.

What is due already goes as ever, without an eta. The eta of protocol 1 is in the body, where it always was.

Killed in the middle, and a scheduler instead of another drain: what was handed over stays so and shows in the history
as dispatched early; the rest waits, and leaves when it is due.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_wheel.broker.envelope import NATIVE
from celery_wheel.engine.context import Round, run_round
from celery_wheel.engine.port import Broker, Chunk
from celery_wheel.errors import OffsetLost
from celery_wheel.leaving.hold import Holding, Patience
from celery_wheel.leaving.progress import Progress
from celery_wheel.store.model import Change, Row
from celery_wheel.store.ports.handover import Hold
from celery_wheel.store.text import END_OF_TIME_MS
from celery_wheel.timing import SystemClock

REASON = "handed over to Celery's own eta"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ahead_ms() -> int:
    """Everything that waits is due within this time; beyond it are years of which nobody could show a date."""
    return END_OF_TIME_MS - SystemClock().now_ms()


@dataclass(slots=True)
class HandedOver:
    moved: int = 0  #: tasks with their eta
    due: int = 0  #: tasks that were due anyway
    rejected: int = 0  #: tasks that have nowhere to go
    taken_in: int = 0  #: of them were in a wheel queue or an inbox


class EtaBroker:
    """An edge that gives rows their eta back on the way out."""

    def __init__(self, edge: Broker) -> None:
        self._edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._edge, name)

    def publish(self, chunk: Chunk, *may_send: Callable[[], bool]) -> Any:
        """Both kinds of brokers take a chunk; a ConfirmingBroker also takes ``may_send``."""
        now_ms = chunk.now_ms
        rows = [row if row.eta_ms <= now_ms else replace(row, headers=with_eta(row)) for row in chunk.rows]
        return self._edge.publish(replace(chunk, rows=rows), *may_send)


def with_eta(row: Row) -> bytes:
    """Headers as Celery sends them with an eta; what is no object stays as it is, and the edge says what is wrong."""
    try:
        headers = json.loads(row.headers)
    except ValueError:
        return row.headers
    if not isinstance(headers, dict):
        return row.headers
    if "task" in headers and not headers.get("eta"):
        headers["eta"] = (_EPOCH + timedelta(milliseconds=row.eta_ms)).isoformat()
    headers[NATIVE] = True
    return json.dumps(headers).encode()


def hand_over(holding: Holding, progress: Progress) -> HandedOver:
    done = HandedOver()
    total = sum(holding.store.handover.count_waiting(shard) for shard in range(holding.store.shards))
    for engine in holding.engines:
        total += _empty(holding, engine.shard, done, total, progress)
        hold = holding.end_engine(engine.shard)
        moved = _settle(holding, hold)
        done.moved += moved
        done.due += max(0, engine.stats.dispatched - moved)
        done.rejected += engine.stats.rejected
    return done


def _empty(holding: Holding, shard: int, done: HandedOver, total: int, progress: Progress) -> int:
    """Until the shard has nothing more; returns how many messages came out of its wheel queue and inbox."""
    engine, store = holding.engines[shard], holding.store
    before, last = sum(one.stats.dispatched for one in holding.engines), -1
    patience = Patience(f"shard {shard}: its tasks cannot be handed over")
    came = holding.take_in(shard)
    while True:
        holding.check()
        rounds = [run_round(steps()) for steps in (engine.prefetch, engine.dispatch, engine.settle)]
        sent = engine.stats.dispatched
        progress("handed over", before + sent, max(total + came, before + sent))
        if Round.BUSY not in rounds and engine.state is not None and not store.handover.count_waiting(shard):
            more = holding.take_in(shard)
            if not more:
                done.taken_in += came
                return came
            came += more
        patience.see(sent != last)
        last = sent


def _settle(holding: Holding, hold: Hold) -> int:
    """Retire rows that were published early, and move the offset back to now; returns how many were retired."""
    store, broker, shard = holding.store, holding.broker, hold.shard
    offsets = broker.adopt(shard, hold.epoch) or {}
    for state in store.lanes(shard):
        if state.lane in offsets and offsets[state.lane].offset < state.offset:
            raise OffsetLost(
                f"the broker has lost the offset of lane {state.lane} of shard {shard}, and perhaps tasks with it; run "
                "this again: it sends those once more"
            )
    moved = store.handover.rest_early(hold, REASON)
    for lane, offset in store.handover.offsets_to_correct(shard, hold.now_ms).items():
        # First the broker: behind the store it is put right by whoever comes, ahead of it rows would be settled.
        if broker.fences:
            broker.set_offset(shard, hold.epoch, lane, offset)
        state = next(one for one in store.lanes(shard) if one.lane == lane)
        store.apply(shard, hold.epoch, Change(lanes=[replace(state, offset=offset, watermark=offset)]))
    return moved
