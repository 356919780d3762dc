"""All that one scheduler process runs of the wheel: a store, a broker edge, and an engine in its threads per shard.

Where there are several schedulers, each says twice a second that it is there, and holds its share of the shards. Each
is a node of Celery's remote control, and keeps the books of what it cancelled (``celery_wheel.node``).

Built from an app's settings; ``beat`` starts and stops it. It is here that the parts meet: the engine knows
neither Celery nor the settings, the edges know no engine.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from celery_wheel.balance import SILENT_MS, Balance
from celery_wheel.broker import broker_for
from celery_wheel.broker.names import shard_of
from celery_wheel.conf import Conf
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.limits import Limits
from celery_wheel.engine.port import Broker
from celery_wheel.engine.runner import Runner
from celery_wheel.engine.state.gates import Rate
from celery_wheel.engine.state.stamps import RevokedStamps
from celery_wheel.errors import StoreUnusable, WheelError
from celery_wheel.node.node import Node
from celery_wheel.node.view import View
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from celery_wheel.store.ports import FullStore, Store
from celery_wheel.store.ports.maintenance import Resharded
from celery_wheel.timing import SystemClock


class WheelService:
    """Start once, stop once. Threads begin with ``start``, so an instance may be made before a fork."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._conf = Conf(app)
        self._store: FullStore | None = None
        self._runners: list[Runner] = []
        self._balance: Balance | None = None
        self._node: Node | None = None

    def check(self) -> None:
        """Raise what would keep the service from starting: a setting, the store, a broker without an edge."""
        self._conf.check()
        broker_for(self._app, self._conf, store_uuid="").close()  # reads the URL; nothing is connected
        open_store_of(self._conf).close()

    def start(self) -> None:
        conf = self._conf
        conf.check()
        self._store = store = open_store_of(conf)
        limits, clock = limits_of(conf), SystemClock()
        # A container that is started anew has its host name and its process id again, and must not pass for the former.
        holder = f"{socket.gethostname()}/{secrets.token_hex(3)}/{os.getpid()}"
        stamps = RevokedStamps()
        others = store.attend(holder, clock.now_ms(), SILENT_MS)
        node = Node(self._app, View(node_name(holder, others), store, self._held, stamps))
        books = node.books()
        for shard in range(conf.shards):
            # A connection of its own for each engine: one that hangs holds up no other shard.
            broker = broker_for(self._app, conf, store.uuid)
            engine = Engine(shard, holder, store, broker, clock, limits, on_cancelled=books, stamps=stamps)
            self._runners.append(Runner(engine, lease_ms=conf.lease_ms, poll_ms=conf.poll_interval_ms))
        self._balance = Balance(store, holder, [runner.engine for runner in self._runners])
        self._balance.start()
        for runner in self._runners:
            runner.start()
        if conf.control:
            node.start()
            self._node = node

    @property
    def started(self) -> bool:
        return self._store is not None

    def holds(self, shard: int) -> bool:
        return self._runners[shard].engine.held

    def _held(self) -> list[int]:
        return [runner.engine.shard for runner in list(self._runners) if runner.engine.held]

    def raise_failure(self) -> None:
        """Surface an engine thread's death, so that the process ends and its supervisor restarts it."""
        for runner in self._runners:
            if runner.failure is not None:
                raise WheelError(
                    f"the engine of shard {runner.engine.shard} died: {runner.failure!r}; nothing was lost, "
                    "another scheduler or a restart goes on from the store"
                ) from runner.failure

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()  # it takes up to a second, for which no shard waits
        runners, self._runners = self._runners, []
        if self._balance is not None:
            self._balance.stop()
        for runner in runners:
            runner.stop()
        if self._node is not None:
            self._node.join()
        if self._store is not None:
            self._store.close()


def node_name(holder: str, alive: list[str]) -> str:
    """``wheel@host``; ``wheel-<pid>@host`` where another scheduler is at work on the host already."""
    host, _, pid = holder.split("/")
    alone = not any(one != holder and one.split("/")[0] == host for one in alive)
    return f"wheel@{host}" if alone else f"wheel-{pid}@{host}"


def reshard_of(app: Any, shards: int) -> Resharded:
    """Give the app's store another number of shards, while no scheduler is at work; see ``store.resharding``.

    Raises StoreUnusable or SettingError, with what to do, and nothing was changed then.
    """
    conf = Conf(app)
    store = open_store(conf.store, durability=conf.durability, shards=None, create=False)
    try:
        broker, now_ms = broker_for(app, conf, store.uuid), SystemClock().now_ms()
        try:
            for shard in range(shards, store.shards):
                _check_empty(store, broker, shard, now_ms)
            for shard in range(store.shards, shards):
                if broker.fences:
                    # It may have been here before: the broker's memory of it says nothing about what is to come.
                    for lane in broker.adopt(shard, now_ms):
                        broker.set_offset(shard, now_ms, lane, ORIGIN)
                    broker.leave(shard, now_ms)
            return store.maintenance.reshard(shards, shard_of, now_ms, archived_only=conf.history_archive)
        finally:
            broker.close()
    finally:
        store.close()


def _check_empty(store: Store, broker: Broker, shard: int, now_ms: int) -> None:
    epoch = store.acquire(shard, "reshard", now_ms, 10_000)
    if epoch is None:
        raise StoreUnusable(f"shard {shard} is held; nothing was changed; stop all schedulers (SIGTERM)")
    try:
        broker.adopt(shard, epoch)
        if broker.peek(shard, 1, 1).arrivals:
            raise StoreUnusable(
                f"the wheel queue of shard {shard}, which would be no more, has messages; nothing was changed; let the "
                "producers have the new wheel_shards first, and let a scheduler take in what is there"
            )
        broker.leave(shard, epoch)
    finally:
        store.release(shard, epoch)


def open_store_of(conf: Conf, *, create: bool = True) -> FullStore:
    return open_store(conf.store, durability=conf.durability, shards=conf.shards, create=create, lease_ms=conf.lease_ms)


def limits_of(conf: Conf) -> Limits:
    return Limits(
        tick_ms=conf.tick_ms,
        wheel_size=conf.size,
        window_ms=conf.window_ms,
        window_count=conf.window_count,
        window_bytes=conf.window_bytes,
        chunk_count=conf.chunk,
        lease_ms=conf.lease_ms,
        retention_ms=conf.history_retention_ms,
        history_bytes=conf.history_max_bytes,
        archived_only=conf.history_archive,
        max_clock_skew_ms=conf.max_clock_skew_ms,
        replay_on_rollback=conf.on_broker_rollback == "replay",
        rollback_window_ms=conf.rollback_window_ms,
        lane_idle_ms=max(Limits().lane_idle_ms, conf.rollback_window_ms),
        rates=_rates(conf),
    )


def _rates(conf: Conf) -> dict[str, Rate]:
    """A shard's part: tasks are spread evenly over the shards."""
    return {name: Rate(count, per_ms * conf.shards) for name, (count, per_ms) in conf.rate_limits.items()}
