"""The time-outs of tests: seconds of a quiet machine, stretched by the measured speed of this machine.

::

    wait_until(lambda: queue.is_empty(), "the queue is empty")        polls; a failure names the missing state
    process.wait(patience(30))                                        for the time-outs of other libraries

A time-out of a test is there to end a hang. Such a time-out is no measure of the product, so it never decides between a
fast and a slow machine. The factor is 1 on the machine that the figures were written for when it is idle, and grows
with

1. the time of a core that a fixed loop takes, measured once in each process: a core that is half as fast makes it 2;
2. the load average over the number of cores, read at each call: work that comes later stretches a wait under way.
"""

import os
import time
from collections.abc import Callable
from functools import cache

#: Seconds that a process may take to start, to end, or to carry out a request, on a quiet machine.
PATIENCE_S = 30.0

#: Duration of ``_loop`` on a quiet machine of the kind that the tests' figures are from.
QUIET_LOOP_S = 0.0085

#: On a machine with a greater factor, a failure says more than a wait.
MOST = 8.0

#: A short wait is noticed soon; a long one asks less often, since what it waits for needs the core: a look at the
#: holders of a store takes 8 ms of it.
_POLL_S, _SELDOM_S = 0.05, 0.1


def _loop() -> float:
    began_s, number = time.thread_time(), 0
    for step in range(100_000):
        number = (number * 31 + step) % 65_537
    return time.thread_time() - began_s


@cache
def _slowness() -> float:
    return min(_loop() for _ in range(3)) / QUIET_LOOP_S


def factor() -> float:
    """Return the factor by which work may take longer here and now than on a quiet machine: 1 or more."""
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(MOST, max(1.0, _slowness()) * max(1.0, crowd))


def patience(seconds: float = PATIENCE_S) -> float:
    """Convert seconds of a quiet machine to seconds of this machine."""
    return seconds * factor()


def wait_until(
    reached: Callable[[], object], state: str, seconds: float = PATIENCE_S, every_s: float | None = None
) -> None:
    """Poll until the state is reached; only for states that another process or thread brings about.

    Args:
        state: the sentence that is to become true; a failure repeats it.
        seconds: of a quiet machine.
        every_s: between two looks; by default a twentieth of the wait so far, within bounds.
    """
    began_s = time.monotonic()
    while not reached():
        waited_s = time.monotonic() - began_s
        assert waited_s < seconds or waited_s < patience(seconds), f"{state}: not within {waited_s:.0f} s"
        time.sleep(every_s or min(_SELDOM_S, max(_POLL_S, waited_s / 20)))
