"""Queues of occurrences are declared on the broker, as Celery's own producer does before it publishes.

::

    a kind of messages is made for the first time ─► its queue, exchange and binding are declared, once a process

So an occurrence waits in its queue for the first worker; without its queue the broker would reject it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kombu.entity import Queue
from kombu.exceptions import OperationalError

#: A round of the engine waits for the connection, but no longer than this.
CONNECT_S = 5


class DeclaredQueues:
    """Declares each queue once; use it in one thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._names: set[str] = set()

    def __call__(self, queues: Iterable[Any]) -> None:
        """Declare queues. Raises OperationalError where the broker does not answer, and its refusal of a queue."""
        new = {one.name: one for one in queues if isinstance(one, Queue) and one.name not in self._names}
        if not new:
            return
        with self._app.connection_for_write(heartbeat=0) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
            try:
                for queue in new.values():
                    queue(connection.default_channel).declare()  # type: ignore[no-untyped-call]
            except connection.connection_errors as error:
                raise OperationalError(str(error)) from error
        self._names |= new.keys()
