"""The bootstep: puts itself before each task's strategy in the worker's consumer.

::

    message ──► on_task_received ──► strategies[task] = Rescuing ── far, and its publication confirmed ──► ack
                     │                                   └── all else ──► Celery's own strategy, untouched
                     └── unknown task, unreadable: Celery's own affair, before it gets here

Celery makes the strategies anew with each connection and at a pool restart, so it is ``update_strategies`` that is
followed. Nothing here counts on the prefetch count: what is acknowledged at once needs no more of it.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import bootsteps

from celery_wheel.conf import Conf
from celery_wheel.reach import reaches
from celery_wheel.rescue.ferry import Ferry
from celery_wheel.rescue.received import Reader

logger = logging.getLogger(__name__)

#: After a publication that failed the messages are held by the worker for so long before another is tried: each try
#: may hold up the worker.
QUIET_S = 10.0


class Rescue(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._ferry: Ferry | None = None
        self._follows = False

    def include_if(self, consumer: Any) -> bool:
        """By the setting, or because somebody has added this very class."""
        conf = Conf(consumer.app)
        asked = conf.rescue or Rescue in consumer.app.steps["consumer"]
        return asked and conf.enabled and reaches(consumer.app, None, None)

    def start(self, consumer: Any) -> None:
        if self._ferry is None:
            self._ferry = Ferry(consumer.app)
        if not self._follows:
            self._follows = True
            make = consumer.update_strategies

            def make_and_wrap() -> None:
                make()
                self._wrap(consumer)

            consumer.update_strategies = make_and_wrap
        self._wrap(consumer)

    def stop(self, consumer: Any) -> None:
        """The worker's own connection was lost, or it ends: this one may be no better."""
        if self._ferry is not None:
            self._ferry.drop()

    terminate = stop

    def _wrap(self, consumer: Any) -> None:
        reader = Reader(consumer)
        for name, strategy in consumer.strategies.items():
            if not isinstance(strategy, Rescuing):
                consumer.strategies[name] = Rescuing(strategy, consumer, reader, self._ferry)


class Rescuing:
    """A task's strategy, called with each message for it."""

    def __init__(self, native: Any, consumer: Any, reader: Reader, ferry: Any) -> None:
        self._native = native
        self._consumer = consumer
        self._reader = reader
        self._ferry = ferry

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        if self._rescued(message, body):
            # Celery's own way to do it, which also counts up the prefetch after a reconnect.
            return ack(logger, self._consumer.connection_errors)
        return self._native(message, body, ack, reject, callbacks, **options)

    def _rescued(self, message: Any, body: Any) -> bool:
        try:
            received = self._reader.read(message, body)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            # An eta that is no time, a name that is too long: Celery says what it makes of it.
            _held_here(message, body, f"it cannot wait in the wheel: {error}")
            return False
        if received is None:
            return False
        if self._ferry.quiet_until_s > time.monotonic():
            return False
        try:
            self._ferry.publish(received)
        except Exception as error:  # whatever the transport calls it
            self._ferry.quiet_until_s = time.monotonic() + QUIET_S
            _held_here(message, body, f"the wheel queue cannot be written to ({type(error).__name__}: {error})")
            return False
        envelope = received.envelope
        logger.info(
            "Task %s[%s] goes to the wheel and waits there until %d (Unix milliseconds)",
            envelope.task,
            envelope.task_id,
            envelope.eta_ms,
            extra={"action": "rescue", "task_id": envelope.task_id, "queue": envelope.queue},
        )
        return True


def _held_here(message: Any, body: Any, why: str) -> None:
    says = message.headers if body is None else body
    logger.warning(
        "Task %s[%s] is held by this worker until its eta, as without the wheel: %s",
        says.get("task"),
        says.get("id"),
        why,
        extra={"action": "not_rescued"},
    )
