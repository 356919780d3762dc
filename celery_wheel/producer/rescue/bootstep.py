"""The bootstep, which wraps each task's strategy in the worker's consumer.

::

    message ──► on_task_received ──► strategies[task] = RescueStrategy ── far, publication confirmed ──► ack
                     │                                   └── other messages ──► Celery's own strategy
                     └── unknown task, unreadable: Celery handles it before this step

Celery makes the strategies anew with each connection and at a pool restart, so the step wraps ``update_strategies``. An
acknowledgement at once leaves the prefetch count as it is.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import bootsteps

from celery_wheel.conf import Conf
from celery_wheel.producer.eligibility import is_eligible
from celery_wheel.producer.rescue.forwarder import Forwarder
from celery_wheel.producer.rescue.received_message import ReceivedMessageReader

logger = logging.getLogger(__name__)

#: After a failed publication the worker holds the messages for this time before the next try, which may block the
#: worker.
QUIET_S = 10.0


class Rescue(bootsteps.StartStopStep):  # type: ignore[misc]  # celery carries no types
    """The step of a worker's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._forwarder: Forwarder | None = None

    def include_if(self, consumer: Any) -> bool:
        """Whether the setting ``wheel_rescue`` or the app's own steps include it, and the wheel can serve the app."""
        conf = Conf(consumer.app)
        wanted = conf.rescue or Rescue in consumer.app.steps["consumer"]
        return wanted and conf.enabled and is_eligible(consumer.app, None, None)

    def start(self, consumer: Any) -> None:
        if self._forwarder is None:  # else the worker has reconnected
            self._forwarder = Forwarder(consumer.app)
            update = consumer.update_strategies

            def update_and_wrap() -> None:
                update()
                self._wrap(consumer)

            consumer.update_strategies = update_and_wrap
        self._wrap(consumer)

    def stop(self, consumer: Any) -> None:
        """Drop the connection: the worker ends, or has lost its own connection."""
        if self._forwarder is not None:
            self._forwarder.drop()

    terminate = stop

    def _wrap(self, consumer: Any) -> None:
        reader = ReceivedMessageReader(consumer)
        for name, strategy in consumer.strategies.items():
            if not isinstance(strategy, RescueStrategy):
                consumer.strategies[name] = RescueStrategy(strategy, consumer, reader, self._forwarder)


class RescueStrategy:
    """A task's strategy, called with each message for it."""

    def __init__(self, native: Any, consumer: Any, reader: ReceivedMessageReader, forwarder: Any) -> None:
        self._native = native
        self._consumer = consumer
        self._reader = reader
        self._forwarder = forwarder

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **options: Any) -> Any:
        if self._forward(message, body):
            # Celery's own function, which also raises the prefetch count after a reconnect.
            return ack(logger, self._consumer.connection_errors)
        return self._native(message, body, ack, reject, callbacks, **options)

    def _forward(self, message: Any, body: Any) -> bool:
        try:
            received = self._reader.read(message, body)
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            # An eta that is no time, a name that is too long: Celery's strategy reports it.
            _log_not_forwarded(message, body, f"the wheel cannot accept it: {error}")
            return False
        if received is None:
            return False
        if self._forwarder.quiet_until_s > time.monotonic():
            return False
        try:
            self._forwarder.publish(received)
        except Exception as error:  # each transport has its own classes
            self._forwarder.quiet_until_s = time.monotonic() + QUIET_S
            _log_not_forwarded(message, body, f"publishing to the wheel queue failed ({type(error).__name__}: {error})")
            return False
        envelope = received.envelope
        logger.info(
            "Task %s[%s] was forwarded to the wheel and is pending there until %d (Unix milliseconds)",
            envelope.task,
            envelope.task_id,
            envelope.eta_ms,
            extra={"action": "rescue", "task_id": envelope.task_id, "queue": envelope.queue},
        )
        return True


def _log_not_forwarded(message: Any, body: Any, why: str) -> None:
    fields = message.headers if body is None else body
    logger.warning(
        "Task %s[%s] is held by this worker until its eta, as without the wheel: %s",
        fields.get("task"),
        fields.get("id"),
        why,
        extra={"action": "not_rescued"},
    )
