"""More machines on paper: the rate at which the first resource is used up, from budgets measured on one machine.

::

    a message's whole way     s µs of a scheduler process + r µs of Redis + d µs of PostgreSQL
    n shards on m machines    n processes                   each has a core, and m = n / CORES, rounded up
                              1 thread of Redis                 CORES of the database
    the rate                  the least of  processes / s,  1 / r,  CORES / d

This is arithmetic and no measurement: it tells what to add first, and it is too good where work waits for a network,
for a disk or for locks of the database. One Redis and one PostgreSQL serve all shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from celery_wheel.operations.figure import Figure

CORES = 4
SHARDS = (1, 2, 4, 8, 16, 32)


class Budget(NamedTuple):
    """Microseconds of CPU a message."""

    scheduler: float
    redis: float
    database: float


def project(ways: Sequence[Budget]) -> Iterator[Figure]:
    """Yield the rate of messages that go all ways: in and out."""
    whole = Budget(*map(sum, zip(*ways, strict=True)))
    for shards in SHARDS:
        machines = -(-shards // CORES)
        rates = {
            "schedulers": shards * 1e6 / whole.scheduler,
            "Redis": 1e6 / whole.redis,
            "PostgreSQL": CORES * 1e6 / whole.database,
        }
        first = min(rates, key=rates.__getitem__)
        name = f"on paper, in and out: {shards} shards, {machines} machines; used up first: {first}"
        yield Figure("processes", name, rates[first], "/s")
