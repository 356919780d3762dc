"""The sink of published messages: the wheel queue, a task's queue, or the workers' remote control."""

from __future__ import annotations

from typing import Any

from celery_wheel.broker import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.testing.engine import SteppedEngine
from celery_wheel.testing.worker import Worker


class MessageSink:
    """Implements ``transport.Sink``."""

    def __init__(self, app: Any, engine: SteppedEngine, worker: Worker) -> None:
        self._app = app
        self._engine = engine
        self._worker = worker

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        if queue == wheel_queue_name(Conf(self._app).namespace, 0):
            self._engine.arrive(raw)
        else:
            self._worker.deliver(channel, queue, raw)

    def broadcast(self, channel: Any, exchange: str, raw: dict[str, Any]) -> None:
        if exchange == self._app.control.mailbox.exchange.name:
            self._worker.command(raw, channel)
        else:
            self._worker.deliver(channel, exchange, raw)  # this worker is one of the listeners
