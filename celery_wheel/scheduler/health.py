"""The health of a scheduler process: whether it lives, and whether it is ready to dispatch or to take over.

::

    live     no job of an engine has died; a process that is not live ends by itself, or has to be restarted
    ready    live · store and broker answer · the clock is fit · every shard has a holder · held shards are in time

A healthy standby is ready. A process that is not ready must not be restarted for it: it waits for a store or a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from celery_wheel.engine.engine import Engine
from celery_wheel.metrics.patient import NotAnswered, PatientCall
from celery_wheel.metrics.server import HttpAnswer
from celery_wheel.overview import Overview, ShardStatus
from celery_wheel.values.format import format_duration


class Health:
    """The checks of one process; any thread may call them.

    Args:
        engines: returns the process's engines, by shard.
        failure: returns the error that ended a job of an engine, if any.
        overview: reads the state of the store.
        objective_ms: lateness up to which a held shard is in time.
    """

    def __init__(
        self,
        engines: Callable[[], Sequence[Engine]],
        failure: Callable[[], BaseException | None],
        overview: Callable[[], Overview],
        objective_ms: int,
    ) -> None:
        self._engines = engines
        self._failure = failure
        self._objective_ms = objective_ms
        self._store = PatientCall("the store", overview)
        self._broker = PatientCall("the broker", self._ask_broker)

    def livez(self, accept: str) -> HttpAnswer:
        return _answer(self.not_live())

    def readyz(self, accept: str) -> HttpAnswer:
        return _answer(self.not_ready())

    def not_live(self) -> list[str]:
        """Return the reasons why the process is not live."""
        failure = self._failure()
        return [] if failure is None else [f"a job of an engine ended: {failure!r}; restart the scheduler"]

    def not_ready(self) -> list[str]:
        """Return the reasons why the process is not ready."""
        engines = self._engines()
        if not engines:
            return ["the scheduler is starting or stopping"]
        found, shards = self.not_live(), list[ShardStatus]()
        self._store.begin()
        self._broker.begin()
        try:
            shards = self._store.result().shards
        except NotAnswered as error:
            found.append(str(error))
        try:
            self._broker.result()
        except NotAnswered as error:
            found.append(str(error))
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
