"""The clock of this host against those of Redis and PostgreSQL. Due times are instants of the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from celery_wheel.operations.doctor.finding import Finding, error, note, ok, warning
from celery_wheel.operations.doctor.installation import Installation
from celery_wheel.values.format import format_duration

#: A smaller difference makes no task noticeably late.
NOTICED_MS = 1_000
#: An answer with a longer round trip is too inexact to compare.
MAX_ROUND_TRIP_MS = 1_000


def check(site: Installation) -> Iterator[Finding]:
    clocks: list[tuple[str, Callable[[], int | None]]] = []
    if site.broker is not None:
        clocks.append((site.broker_name, site.broker.now_ms))
    if site.store is not None:
        clocks.append((site.store.name, site.store.now_ms))
    if len(clocks) < 2:
        unseen = "the broker and the store" if not clocks else "the broker" if site.broker is None else "the store"
        text = f"this host's clock was not compared with that of {unseen}: there was no answer"
        yield note("clock", text, "Follow the remedies above, and run this again.")
    found = [one for name, clock in clocks if (one := _compared(name, clock, site.conf.max_clock_skew_ms)) is not None]
    yield from found
    if len(clocks) == 2 and not found:
        yield ok("clock", "neither broker nor store has a clock of its own: a wrong clock of this host is not found")


def _compared(name: str, clock: Callable[[], int | None], max_skew_ms: int) -> Finding | None:
    clock()  # the first call may have to connect
    sent_ms, sent_s = time.time() * 1_000, time.monotonic()
    its_ms = clock()
    took_ms = (time.monotonic() - sent_s) * 1_000
    if its_ms is None:
        return None
    skew_ms = round(sent_ms + took_ms / 2 - its_ms)
    if took_ms > MAX_ROUND_TRIP_MS:
        return warning(
            "clock",
            f"{name} took {format_duration(round(took_ms))} to answer with its time: too long to compare clocks",
            "Check the load of its host and the network, and run this again.",
        )
    text = (
        f"this host's clock is {format_duration(abs(skew_ms))} {'ahead of' if skew_ms > 0 else 'behind'} that of {name}"
    )
    remedy = "Check the time service (NTP) of both hosts; `timedatectl` shows whether a host's clock is synchronized."
    if abs(skew_ms) > max_skew_ms:
        return error("clock", f"{text}: a scheduler that starts here holds no shard (wheel_max_clock_skew)", remedy)
    return warning("clock", text, remedy) if abs(skew_ms) > NOTICED_MS else ok("clock", text)
