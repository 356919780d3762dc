"""Herds: schedules that are due at nearly the same time, more than can be made in time, are made ahead at an even pace.

::

    08:57:52    64,000 of the next schedules are due by 09:00:00; making them takes 64 s at 1,000 a second, and twice
                that time is left: they are a herd
    08:57:52 …  100 of them in a round, 20 rounds a second at most; between them ingest does its other work
    08:59:50    all are rows, in a lane of their own
    09:00:00    dispatch publishes a chunk of that lane and a chunk of the main lane by turns: tasks that are due
                meanwhile do not wait for the herd

A change of a schedule withdraws its row, however long ahead it was made. A schedule whose runs must not overlap is made
at its instant only, and one whose renderings the application watches (check-ins, traces) at its normal look-ahead.
"""

from __future__ import annotations

from collections.abc import Generator

from celery_wheel.engine.round import Context
from celery_wheel.engine.state.agenda import LOOK_MS
from celery_wheel.engine.state.shard import ShardState

#: The least milliseconds between two rounds of a herd.
ROUND_MS = 50

#: A round makes this many times its share of the pace: rounds take time, and other work comes between them.
HASTE = 2

#: A herd has this many times the time that it takes at the pace.
EARLY = 2


def herd_round(ctx: Context) -> int:
    """Return the most occurrences of one round of a herd."""
    return max(1, ctx.limits.herd_per_s * HASTE * ROUND_MS // 1_000)


def find_herd(ctx: Context, state: ShardState, now_ms: int) -> Generator[str, None, int | None]:
    """Return the instant up to which schedules are to be made now; None where there is no herd.

    A herd that was found is kept until all of it is made; otherwise the store is read once in LOOK_MS.
    """
    agenda, limits, monotonic_ms = state.agenda, ctx.limits, ctx.clock.monotonic_ms()
    if agenda.herd_ms is None and monotonic_ms >= agenda.herd_look_ms:
        agenda.herd_look_ms = monotonic_ms + LOOK_MS
        count = limits.herd_count
        while True:
            at_ms = ctx.store.next_schedule_ms(ctx.shard, count - 1)
            yield "herd looked for"
            if at_ms is None or at_ms > now_ms + limits.herd_ms:
                break
            if at_ms - now_ms < EARLY * 1_000 * count // limits.herd_per_s:
                agenda.herd_ms = at_ms
            count *= 2
    if agenda.herd_ms is not None and agenda.herd_ms <= now_ms + limits.look_ahead_ms:
        agenda.herd_ms = None
    return agenda.herd_ms
