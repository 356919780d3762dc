"""Whether the broker answers this process; a scheduler that is cut off from it alone leaves its shards to the others.

::

    a call of an engine has failed, or a lease has run out ──► ask the broker ──► it answers: nothing was wrong
                                                                    └─ no answer for UNREACHED_S: out of reach, until
                                                                       it answers; it is asked every half second

A holder that waits for a broker keeps its lease, or takes it again and again. If the broker is down for all, nobody
can do better. If another scheduler reaches it, due tasks would wait for as long as the network is broken.

A process whose broker answers is asked nothing: on some transports each question costs money.
"""

from __future__ import annotations

from collections.abc import Sequence

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool, Wait
from celery_wheel.errors import BrokerError

#: Without an answer for so long the broker is out of reach; a broker that restarts is often back before.
UNREACHED_S = 1.0

_EVERY_S = 0.5


class BrokerReach:
    def __init__(self, engines: Sequence[Engine], pool: Pool) -> None:
        self._engines, self._pool = engines, pool
        self._errors = 0
        self._since_s: float | None = None  #: when the first question was put that has no answer yet
        self._job = pool.job(self._ask, "broker reach")

    def is_lost(self) -> bool:
        """Whether the broker is out of reach; to be called every half second. A doubt puts the question."""
        errors = sum(engine.stats.broker_errors for engine in self._engines)
        lapsed = any(engine.state is not None and not engine.held for engine in self._engines)
        if self._since_s is None and (errors != self._errors or lapsed):
            self._since_s = self._pool.now_s()
            self._job.wake()
        self._errors = errors
        return self._since_s is not None and self._pool.now_s() - self._since_s >= UNREACHED_S

    def stop(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._job.cancel()

    def _ask(self) -> Wait:
        if self._since_s is None:  # the pool runs a job that nothing wakes once a minute
            return Wait()
        engine = self._engines[0]
        try:
            engine.delivery.broker.depth(engine.shard)
        except BrokerError:
            return Wait(_EVERY_S, _EVERY_S)
        self._since_s = None
        return Wait()  # until it is woken
