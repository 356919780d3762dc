"""Celery's remote control in a simulated year: kombu's own mailbox over its transport in memory, with outages.

Each call goes through the broker's line. A connection ends with its process or with an outage, and takes the queues
that it alone reads with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any
from unittest import mock

from kombu import pools, transport
from kombu.transport import memory, virtual
from kombu.utils import functional

from celery_wheel.scheduler.remote_control import node
from tests.kit.virtual_machine import Host
from tests.year.beats import Year

#: Rarer than the node's own heartbeats, which would cost a fifth of the year's time.
HEARTBEAT_S = 20.0


class MailChannel(memory.Channel):  # type: ignore[misc]  # kombu carries no types
    year: Year
    owners: dict[str, tuple[MailChannel, Host]]

    def queue_declare(self, queue: str = "", **options: Any) -> Any:
        if queue.endswith(".celery.pidbox"):
            self.owners[queue] = self, self.year.machine.host
        return super().queue_declare(queue, **options)

    def basic_publish(self, *arguments: Any, **options: Any) -> Any:
        self.year.broker_line.gate()
        found = super().basic_publish(*arguments, **options)
        self.year.broker.changed.notify_all()
        return found

    def close(self) -> None:
        self.forget(self)
        super().close()

    @classmethod
    def forget(cls, owner: object) -> None:
        for queue in [queue for queue, owners in cls.owners.items() if owner in owners]:
            del cls.owners[queue]
            cls.year.mailbox.global_state.queue_bindings_delete(queue)
            cls.queues.pop(queue, None)


class MailTransport(memory.Transport):  # type: ignore[misc]  # kombu carries no types
    year: Year

    def establish_connection(self) -> Any:
        self.year.broker_line.gate()
        return super().establish_connection()

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        machine, changed = self.year.machine, self.year.broker.changed
        until_s = machine.now_s + (timeout or 0)
        while True:
            self.year.broker_line.gate()
            try:
                self.cycle.get(self._deliver)
            except Empty:
                if machine.now_s >= until_s:
                    raise TimeoutError from None
            else:
                return
            with changed:
                changed.wait(until_s - machine.now_s)


def mailbox(year: Year) -> type[MailTransport]:
    channel = type("Channel", (MailChannel,), {"year": year, "queues": {}, "owners": {}})
    parts = {"year": year, "Channel": channel, "global_state": virtual.BrokerState()}
    return type("Transport", (MailTransport,), parts)


@contextmanager
def mailboxes(year: Year) -> Iterator[None]:
    pools.reset()  # they are the process's, and may have connections to another broker in memory
    sleep = mock.patch.object(functional, "sleep", year.machine.time.sleep)
    every = mock.patch.object(node, "EVERY_S", HEARTBEAT_S)
    with sleep, every, mock.patch.dict(transport._transport_cache, {"memory": year.mailbox}):
        try:
            yield
        finally:
            pools.reset()
