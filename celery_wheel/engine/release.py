"""Release: rows that wait for their group, or for room in their queue, move to a lane that publishes.

::

    1 expire     runs that no worker has reported for max_runtime give their slots back
    2 depths     how many messages are ready in the queues of ``wheel_queue_depth``, if lines wait for them
    3 choose     lines by weighted round-robin, as far as their groups and queues have room; each choice takes a slot
    4 read       the first rows of the chosen lines, in one statement
    5 commit     the rows move behind the watermark of the main lane, in the order of the choice; ``dispatch`` is next

A row that is cancelled between 4 and 5 is not moved, nor is any row behind it in this round.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from functools import partial

from celery_wheel.engine.round import Context, Round, RoundSteps
from celery_wheel.engine.state.groups import Line
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.model import RANK_BITS, Row

#: The longest wait of the job: a missed wake delays a release by at most so long.
MAX_WAIT_MS = 10_000


def release(ctx: Context, state: ShardState) -> RoundSteps:
    groups = state.groups
    with state.active():
        timed_out = len(groups.expire(ctx.clock.now_ms()))
        queues = groups.queues_to_read(ctx.clock.monotonic_ms())
    ctx.stats.add(slots_timed_out=timed_out)
    if queues:
        depths = ctx.broker.ready(queues)
        yield "depths read"
        with state.active():
            groups.depths_read(depths, ctx.clock.monotonic_ms())
    with state.active():
        chosen = groups.choose(ctx.limits.chunk_count, ctx.clock.monotonic_ms(), state.gates)
        removed = state.window.track_removed()
    yield "chosen"
    undecided = chosen
    try:
        if not chosen:
            yield Round.IDLE
            return
        wanted = Counter(line.number for line in chosen)
        rows = ctx.store.first_waiting(ctx.shard, list(wanted.items()))
        yield "waiting rows read"
        with state.active():
            moved, missing = _in_order(chosen, rows, removed)
            undecided = []
            groups.not_released(missing)
            groups.released(moved)
            work = UnitOfWork(state, ctx.clock.now_ms())
            for row, line in moved:
                work.release(row, line)
            work.on_apply(partial(groups.moved, {row.id for row, _ in moved}))
            work.reserve()
    finally:
        with state.lock:
            groups.not_released(undecided)  # the store did not answer
            state.window.untrack_removed(removed)
    if moved:
        yield "reserved"
        yield from work.commit(ctx)
        ctx.stats.add(released=len(moved))
    yield Round.BUSY if moved else Round.IDLE


def _in_order(chosen: list[Line], rows: list[Row], removed: set[int]) -> tuple[list[tuple[Row, Line]], list[Line]]:
    """Return the rows to move with their lines, in the order of the choice, and the lines that had no row left."""
    by_line: dict[int, deque[Row]] = defaultdict(deque)
    stopped: set[int] = set()
    for row in rows:
        number = (row.line or 0) >> RANK_BITS
        if row.id in removed:
            stopped.add(number)
        if number not in stopped:
            by_line[number].append(row)
    moved, missing = list[tuple[Row, Line]](), list[Line]()
    for line in chosen:
        if found := by_line[line.number]:
            moved.append((found.popleft(), line))
        else:
            missing.append(line)
    return moved, missing


def wait_ms(ctx: Context, state: ShardState | None) -> int:
    """Return how long the job may wait before its next round, unless it is woken."""
    if state is None:
        return MAX_WAIT_MS
    with state.lock:
        found = state.groups.next_ms(ctx.clock.monotonic_ms(), ctx.clock.now_ms())
    return MAX_WAIT_MS if found is None else min(MAX_WAIT_MS, found)
