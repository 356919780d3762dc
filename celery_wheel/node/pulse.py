"""The events of the node: by these Flower and ``celery events`` know that it is there.

::

    worker-online      once, and anew after a lost connection
    worker-heartbeat   every EVERY_S
    worker-offline     when it stops

They go out under a routing key of their own, ``wheel.heartbeat`` for ``worker.heartbeat``. Who watches everything gets
them; workers' gossip, which listens to ``worker.#``, does not: it would count the node among the workers, and an
election would wait for its vote for ever.
"""

from __future__ import annotations

from typing import Any

from celery.events import EventDispatcher
from celery.utils.sysinfo import load_average
from celery.worker.state import SOFTWARE_INFO

#: As often as a worker.
EVERY_S = 2.0


class _Dispatcher(EventDispatcher):  # type: ignore[misc]  # celery carries no types
    def _publish(self, event: Any, producer: Any, routing_key: str, **options: Any) -> Any:
        own = routing_key.replace("worker.", "wheel.", 1)
        return super()._publish(event, producer, own, **options)


class Pulse:
    """For one connection. Errors of it come through, to whoever opens the next."""

    def __init__(self, app: Any, node: str, channel: Any) -> None:
        self._dispatcher = _Dispatcher(
            channel.connection.client, hostname=node, channel=channel, app=app, buffer_while_offline=False
        )

    def online(self) -> None:
        self._send("worker-online")

    def beat(self) -> None:
        self._send("worker-heartbeat")

    def offline(self) -> None:
        self._send("worker-offline")

    def _send(self, kind: str) -> None:
        self._dispatcher.send(kind, freq=EVERY_S, active=0, processed=0, loadavg=load_average(), **SOFTWARE_INFO)
