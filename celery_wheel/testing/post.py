"""Where published messages go: the wheel's queue, a task's queue, or the workers' remote control."""

from __future__ import annotations

from typing import Any

from celery_wheel.broker.names import wheel_queue_name
from celery_wheel.conf import Conf
from celery_wheel.testing.inbound import Inbound
from celery_wheel.testing.worker import Worker


class Post:
    """Implements ``transport.Post``."""

    def __init__(self, app: Any, inbound: Inbound, worker: Worker) -> None:
        self._app = app
        self._inbound = inbound
        self._worker = worker

    def deliver(self, channel: Any, queue: str, raw: dict[str, Any]) -> None:
        if queue == wheel_queue_name(Conf(self._app).namespace, 0):
            self._inbound.arrive(raw)
        else:
            self._worker.deliver(channel, queue, raw)

    def broadcast(self, channel: Any, exchange: str, raw: dict[str, Any]) -> None:
        if exchange == self._app.control.mailbox.exchange.name:
            self._worker.command(raw, channel)
        else:
            self._worker.deliver(channel, exchange, raw)  # of the workers that listen there, this is one
