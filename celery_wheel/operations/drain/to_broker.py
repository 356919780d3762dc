"""Drain into the tasks' own queues, with their eta, as Celery itself would have sent them.

The engine dispatches by its own rules, with all pending tasks counted as due; ``publish`` gives headers their eta back,
and the mark that keeps rescue from taking them back. A queue that refuses is waited for. Then the rows get the outcome
"moved", and the offset goes back to now. If a drain is killed and a scheduler starts, the history shows the tasks
dispatched so far as early; the others are dispatched at their time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery_wheel.broker.envelope import NATIVE
from celery_wheel.engine.port import Broker, Chunk
from celery_wheel.engine.round import Round, run_round
from celery_wheel.errors import OffsetLost
from celery_wheel.operations.drain.hold import DrainResult, Progress, ProgressDeadline, ShardHold, total
from celery_wheel.store.model import PLAIN, Row, join
from celery_wheel.store.store_model import ShardEpoch
from celery_wheel.timing import SystemClock
from celery_wheel.values.instants import utc
from celery_wheel.values.text import END_OF_TIME_MS

REASON = "moved to its own queue, with Celery's own eta"


def ahead_ms() -> int:
    """Return the time within which every pending task is due; no calendar has a date beyond it."""
    return END_OF_TIME_MS - SystemClock().now_ms()


class EtaBroker:
    def __init__(self, edge: Broker) -> None:
        self._edge = edge

    def __getattr__(self, name: str) -> Any:
        return getattr(self._edge, name)

    def publish(self, chunk: Chunk, *may_send: Callable[[], bool]) -> Any:
        """Both kinds of brokers take a chunk; a ConfirmingBroker also takes ``may_send``."""
        now_ms = chunk.now_ms
        rows = [row if row.eta_ms <= now_ms else with_eta(row) for row in chunk.rows]
        return self._edge.publish(replace(chunk, rows=rows), *may_send)


def with_eta(row: Row) -> Row:
    """Return the row with headers as Celery sends them with an eta. The edge rejects other headers as they are."""
    try:
        parts = row.parts()
        headers = json.loads(parts.headers)
    except ValueError:
        return row
    if not isinstance(headers, dict):
        return row
    if "task" in headers and not headers.get("eta"):
        headers["eta"] = utc(row.eta_ms).isoformat()
    headers[NATIVE] = True
    packed = join(json.dumps(headers).encode(), parts.properties, parts.body)
    return replace(row, packed=packed, packing=PLAIN)


def drain_to_broker(hold: ShardHold, done: DrainResult, progress: Progress) -> None:
    pending = total(hold.store, hold.store.handover.count_pending)
    for engine in hold.engines:
        accepted = _empty(hold, engine.shard, pending, progress)
        pending += accepted
        retired = _retire(hold, hold.end_engine(engine.shard))
        done.accepted += accepted
        done.moved += retired
        done.due += max(0, engine.stats.dispatched - retired)
        done.rejected += engine.stats.rejected


def _empty(hold: ShardHold, shard: int, pending: int, progress: Progress) -> int:
    """Dispatch until the shard is empty; return the number of messages accepted from its wheel queue and inbox."""
    engine, store = hold.engines[shard], hold.store
    before, last = sum(one.stats.dispatched for one in hold.engines), -1
    deadline = ProgressDeadline(f"shard {shard}: its tasks cannot be dispatched")
    accepted = hold.ingest(shard)
    jobs = engine.release_rows, engine.prefetch, engine.dispatch, engine.settle
    while True:
        hold.check()
        rounds = [run_round(job()) for job in jobs]
        sent = engine.stats.dispatched
        progress("dispatched", before + sent, max(pending + accepted, before + sent))
        if Round.BUSY not in rounds and engine.state is not None and not store.handover.count_pending(shard):
            more = hold.ingest(shard)
            if not more:
                return accepted
            accepted += more
        deadline.note(sent != last)
        last = sent


def _retire(hold: ShardHold, held: ShardEpoch) -> int:
    """Retire rows that were published early, and set the offset back to now; return the number of retired rows."""
    store, broker, shard = hold.store, hold.broker, held.shard
    offsets = broker.adopt(shard, held.epoch) or {}
    for state in store.lanes(shard):
        if state.lane in offsets and offsets[state.lane].offset < state.offset:
            raise OffsetLost(
                f"the broker has lost the offset of lane {state.lane} of shard {shard}, and perhaps tasks with it; run "
                "this again: it dispatches those tasks once more"
            )
    retired = store.handover.mark_early_moved(held, REASON)
    for lane, offset in store.handover.offsets_to_correct(shard, held.now_ms).items():
        # The broker first: the next holder corrects an offset that is behind the store's, but an offset ahead of the
        # store's would settle rows that were not dispatched.
        if broker.fences:
            broker.set_offset(shard, held.epoch, lane, offset)
        hold.set_back(held, lane, offset)
    return retired
