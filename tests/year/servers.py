"""The store, the broker and the result backend of a simulated year, as a process reaches them: with outages.

::

    Server.mode   refused   each call fails at once, as where nobody listens; otherwise up
                  silent    each call fails after SILENT_S, as where packets vanish
                  full      calls that write fail, as on a full disk
    Reached(what it is, server)     the same object through that line; a dead process reaches nothing any more

The data are those of the simulation's models: what a process has written before it died stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit

from celery_wheel.broker import shard_of
from celery_wheel.engine.port import BrokerOffset, Chunk, Published
from celery_wheel.store.model import Message, Row
from celery_wheel.store.ports.pages import StoreSize
from tests.kit.virtual_machine import Host, Machine
from tests.simulation.model_redis import ModelRedis, RedisServer
from tests.simulation.model_store import Disk, ModelStore

UP, REFUSED, SILENT, FULL = "up", "refused", "silent", "full"

#: As the time-outs of the edges, which are three to five seconds.
SILENT_S = 4.0

#: Calls that change the store.
WRITES = {"acquire", "renew", "renew_all", "release", "register_scheduler", "unregister_scheduler", "apply", "forget"}
WRITES |= {"apply_all", "put_inbox", "put_inboxes", "put_command", "put_commands", "withdraw", "expire"}

#: They ask nobody.
LOCAL = {"fences", "decode", "close", "leave", "bell", "is_replaced"}


class Server:
    def __init__(self, machine: Machine, name: str, error: Callable[[str], Exception]) -> None:
        self.machine = machine
        self.name = name
        self.mode = UP
        self.open: list[Host] = []  #: the hosts of the open connections
        self._error = error

    def gate(self, call: str = "") -> None:
        """Let a call through, or fail as the server does now."""
        if self.machine.host.is_dead:
            raise GreenletExit
        if self.mode == UP or call in LOCAL or (self.mode == FULL and call not in WRITES):
            return
        if self.mode == SILENT:
            self.machine.time.sleep(SILENT_S)
        raise self._error(f"the {self.name} is {self.mode} (simulated)")


class Reached:
    def __init__(self, target: Any, server: Server) -> None:
        self._target = target
        self._server = server

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value) or name == "keep_alive":  # it never fails
            return value
        gate = self._server.gate

        def call(*args: Any, **options: Any) -> Any:
            gate(name)
            return value(*args, **options)

        self.__dict__[name] = call
        return call


class YearBell:
    """Rings when the inbox gets an item."""

    tells = True

    def __init__(self, store: YearStore) -> None:
        self._bells = store.year_disk.bells
        self.host = store.year_disk.machine.host
        self._rung = store.year_disk.machine.threading.Event()
        self._bells.append(self)

    def ring(self) -> None:
        self._rung.set()

    def wait(self, most_s: float) -> None:
        self._rung.wait(most_s)
        self._rung.clear()

    def close(self) -> None:
        if self in self._bells:
            self._bells.remove(self)


class YearDisk(Disk):
    def __init__(self, machine: Machine) -> None:
        super().__init__(lambda: machine.now_ms)
        self.machine = machine
        self.bells: list[YearBell] = []


class Browse:
    """The part of a store's port ``Browse`` that the sources and the checks of health read."""

    def __init__(self, disk: YearDisk) -> None:
        self._disk = disk

    def schedule_names(self, source: str, after: str = "") -> list[str]:
        found = [one for data in self._disk.shards.values() for one in data.schedules.values()]
        return sorted(one.name for one in found if one.source == source and one.name > after)

    def schedule_counts(self) -> None: ...

    def size(self) -> StoreSize:
        return StoreSize(0, None)

    def server(self) -> None:
        """No database server is asked about itself."""


class YearStore(ModelStore):
    name = "the year's store"

    def __init__(self, disk: YearDisk) -> None:
        super().__init__(disk)
        self.year_disk = disk

    @property
    def shards(self) -> int:
        return len(self.disk.shards)

    def is_replaced(self) -> bool:
        return False

    def is_as_opened(self) -> bool:
        return True

    def bell(self) -> YearBell:  # type: ignore[override]
        return YearBell(self)

    def put_inboxes(self, items: Any) -> None:
        super().put_inboxes(items)
        for bell in self.year_disk.bells:
            bell.ring()


class StoreLine(Reached):
    def __init__(self, disk: YearDisk, server: Server) -> None:
        super().__init__(YearStore(disk), server)
        self._host = server.machine.host
        server.open.append(self._host)
        self.browse = Reached(Browse(disk), server)

    def close(self) -> None:
        if self._host in self._server.open:
            self._server.open.remove(self._host)
        if not self._server.machine.host.is_dead:
            self._target.close()


class BrokerServer:
    """Redis, with a memory for each shard."""

    in_doubt_ms = 0

    def __init__(self, machine: Machine, line: Server, shards: int) -> None:
        self.machine = machine
        self.line = line
        self.changed = machine.threading.Condition()
        self.shards = [RedisServer() for _ in range(shards)]

    def send(self, message: Message) -> None:
        self.shards[shard_of(message.key, message.task_id, len(self.shards))].keys.wheel.append(message)
        self.changed.notify_all()

    def edge(self, pushed: Callable[[Row, bool], None]) -> Any:
        return Reached(YearRedis(self, pushed), self.line)

    def outage(self) -> None:
        self.changed.notify_all()

    def after_death(self, host: Host) -> None: ...
    def look(self) -> None: ...


class YearRedis(ModelRedis):
    """The model of the edge of Redis; it waits for a message, until the connection breaks."""

    def __init__(self, servers: BrokerServer, pushed: Callable[[Row, bool], None]) -> None:
        self._servers = servers
        super().__init__(servers.shards[0], lambda: servers.machine.now_ms, pushed=lambda row, _ms: pushed(row, False))

    def adopt(self, shard: int, epoch: int) -> dict[int, BrokerOffset]:
        self.server = self._servers.shards[shard]
        return super().adopt(shard, epoch)

    def publish(self, chunk: Chunk) -> Published:
        found = super().publish(chunk)
        self.server.keys.queues.clear()  # the judge has seen them
        return found

    def verify(self, shard: int, epoch: int, confirmed: int, accepted: int = 0) -> None:
        self._servers.shards[shard].keys.fence.verify(epoch, confirmed, accepted)

    def await_message(self, shard: int, timeout_ms: int) -> bool:
        line, changed = self._servers.line, self._servers.changed
        with changed:
            changed.wait_for(lambda: self.server.keys.wheel or line.mode == REFUSED, timeout_ms / 1_000)
        line.gate()
        return bool(self.server.keys.wheel)
