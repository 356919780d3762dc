"""The health of a scheduler process: whether it lives, and whether it is ready to dispatch or to take over.

::

    live     no job has died, and each makes progress, or hangs in a call while the store or the broker does not answer;
             a process that is not live ends by itself, or has to be restarted
    ready    live · store and broker answer · the clock is fit · every shard has a holder · held shards are in time

A healthy standby is ready. A process that is not ready must not be restarted for it: it waits for a store or a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool
from celery_wheel.metrics.patient import NotAnswered, PatientCall
from celery_wheel.metrics.server import HttpAnswer
from celery_wheel.overview import Overview, ShardStatus
from celery_wheel.values.format import format_duration


class Health:
    """The checks of one process; any thread may call them.

    Args:
        engines: returns the process's engines, by shard.
        pool: of all jobs.
        overview: reads the state of the store.
        objective_ms: lateness up to which a held shard is in time.
    """

    def __init__(
        self,
        engines: Callable[[], Sequence[Engine]],
        pool: Pool,
        overview: Callable[[], Overview],
        objective_ms: int,
    ) -> None:
        self._engines = engines
        self._pool = pool
        self._objective_ms = objective_ms
        self._store = PatientCall("the store", overview)
        self._broker = PatientCall("the broker", self._ask_broker)

    def livez(self, accept: str) -> HttpAnswer:
        return _answer(self.not_live())

    def readyz(self, accept: str) -> HttpAnswer:
        return _answer(self.not_ready())

    def not_live(self) -> list[str]:
        """Return the reasons why the process is not live."""
        if self._pool.failure is not None:
            name, error = self._pool.failure
            return [f"the job {name} ended: {error!r}; restart the scheduler"]
        stuck = self._pool.stuck()
        if stuck and all(one.runs for one in stuck) and any(self._silent()):
            return []  # a restart would wait for the same server
        return [f"{one}; restart the scheduler" for one in stuck]

    def _silent(self) -> Iterator[str]:
        """Yield an error for each server that does not answer."""
        calls: tuple[PatientCall[Any], ...] = (self._store, self._broker)
        for call in calls:
            call.begin()
        for call in calls:
            try:
                call.result()
            except NotAnswered as error:
                yield str(error)

    def not_ready(self) -> list[str]:
        """Return the reasons why the process is not ready."""
        engines = self._engines()
        if not engines:
            return ["the scheduler is starting or stopping"]
        found, shards = self.not_live(), list[ShardStatus]()
        found += self._silent()
        with suppress(NotAnswered):
            shards = self._store.result().shards
        if any(engine.clock.halted for engine in engines):
            found.append("the clock of this host is too far from the second clock; check its time service")
        held = {engine.shard for engine in engines if engine.held}
        for one in shards:
            if one.shard in held:
                found += self._late(one)
            elif one.holder is None:
                found.append(f"shard {one.shard} has no holder")
        return found

    def _late(self, shard: ShardStatus) -> Iterator[str]:
        if shard.behind_ms > self._objective_ms:
            yield (
                f"shard {shard.shard} is {format_duration(shard.behind_ms)} late, and wheel_objective allows "
                f"{format_duration(self._objective_ms)}"
            )

    def _ask_broker(self) -> None:
        for engine in self._engines()[:1]:
            engine.delivery.broker.depth(engine.shard)


def _answer(problems: list[str]) -> HttpAnswer:
    text = "".join(f"{problem}\n" for problem in problems) or "ok\n"
    return HttpAnswer(503 if problems else 200, text.encode())
