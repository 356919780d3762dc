"""The events of the node: Flower and ``celery events`` show it by these.

::

    worker-online      once, and anew after a lost connection
    worker-heartbeat   every EVERY_S
    worker-offline     when it stops

The events have a routing key of their own, ``wheel.heartbeat`` for ``worker.heartbeat``. A monitor of all events gets
them; workers' gossip, which listens to ``worker.#``, does not: it would count the node among the workers, and an
election would wait for its vote for ever.
"""

from __future__ import annotations

from typing import Any, Literal

from celery.events import EventDispatcher
from celery.utils.sysinfo import load_average
from celery.worker.state import SOFTWARE_INFO

#: As often as a worker.
EVERY_S = 2.0


class _Dispatcher(EventDispatcher):  # type: ignore[misc]  # celery carries no types
    def _publish(self, event: Any, producer: Any, routing_key: str, **options: Any) -> Any:
        own = routing_key.replace("worker.", "wheel.", 1)
        return super()._publish(event, producer, own, **options)


class Heartbeat:
    """The events of one connection; its errors are raised to the caller, which opens the next connection."""

    def __init__(self, app: Any, node: str, channel: Any) -> None:
        self._dispatcher = _Dispatcher(
            channel.connection.client, hostname=node, channel=channel, app=app, buffer_while_offline=False
        )

    def send(self, event: Literal["worker-online", "worker-heartbeat", "worker-offline"]) -> None:
        self._dispatcher.send(event, freq=EVERY_S, active=0, processed=0, loadavg=load_average(), **SOFTWARE_INFO)
