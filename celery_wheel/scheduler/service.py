"""The wheel of one scheduler process: a store, a broker edge, and an engine for each shard, in one pool of threads.

This module alone puts the parts together: the engine knows neither Celery nor settings, and the edges know no engine.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_wheel.broker import shard_of
from celery_wheel.broker.destinations import RouteRefusals, destinations_of
from celery_wheel.broker.transport import broker_for, meet_broker
from celery_wheel.conf import Conf
from celery_wheel.conf.limits import LimitValues
from celery_wheel.conf.store import make_state_folder
from celery_wheel.engine.due_clock import ClockReadings
from celery_wheel.engine.engine import Engine
from celery_wheel.engine.pool import Pool
from celery_wheel.engine.port import Broker
from celery_wheel.engine.round import Limits
from celery_wheel.engine.runner import Runner
from celery_wheel.engine.state.depths import depths_of
from celery_wheel.engine.state.gates import Rate
from celery_wheel.engine.state.groups import Limit
from celery_wheel.engine.state.tombstones import RevokedStamps
from celery_wheel.errors import BrokerError, StoreError, StoreNotReady, StoreUnusable, WheelError
from celery_wheel.overview import in_thread
from celery_wheel.scheduler import monitoring
from celery_wheel.scheduler.monitoring import Monitoring, Watchdog, notify, tune_process
from celery_wheel.scheduler.occurrences import DeclaredQueues, ScheduleRenderer, cancel_replaced
from celery_wheel.scheduler.reach import BrokerReach
from celery_wheel.scheduler.remote_control import SchedulerView
from celery_wheel.scheduler.remote_control.node import Node
from celery_wheel.scheduler.share import SILENT_MS, Balance, Role
from celery_wheel.scheduler.spans import DispatchSpans
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore
from celery_wheel.timing import Backoff, Clock, RetryLog, SystemClock
from celery_wheel.values.keyring import signing_keys
from celery_wheel.values.log import get_logger
from celery_wheel.values.mask import Mask

if TYPE_CHECKING:
    from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry

logger = get_logger(__name__)

#: A start tries so often whether store and broker are ready.
RETRY_FIRST_S, RETRY_MOST_S = 0.5, 2.0

#: A scheduler whose job is stuck for so long ends by itself: no statement of a store takes longer. Probes and systemd
#: see it after ``HANGS_S``.
ENDS_S = 75

#: Seconds that a stop waits for connections to the broker to be closed.
CLOSE_S = 3.0

NOTHING_LOST = "nothing was lost; another scheduler, or this one after a restart, goes on from the store"


class WheelService:
    """A service to start once and stop once. Threads begin with ``start``, so an instance may be made before a fork.

    ``process`` is its number among those of ``supervisor``: 1 is beat's own, and its children serve all shards but 0.
    """

    def __init__(self, app: Any, apply_entry: BeatApplyEntry | None = None, *, process: int = 1) -> None:
        self._app = app
        self._process = process
        self._apply_entry = apply_entry
        self._conf = Conf(app)
        self._pool = Pool()
        clock = SystemClock()
        #: An outage is one line of all shards, and of the sources, which come and go with shard 0.
        self.retries = RetryLog(logger, lambda: clock.monotonic_ms() / 1_000)
        self.started = False
        self._runner: Runner | None = None  #: while the engines run
        self._monitoring: Monitoring | None = None
        self._brokers: list[Broker] = []
        self._stops = ExitStack()  #: the ends of all that ``start`` has begun, the last first

    def check(self) -> None:
        """Raise the error of a setting, the store or the transport that would keep the service from starting."""
        self._conf.check()
        monitoring.check(self._conf)
        with closing(broker_for(self._app, self._conf, None)) as broker, suppress(BrokerError):  # it reads the URL
            if broker.fences:  # Redis, which may be a cluster
                broker.depth(0)
        with suppress(StoreNotReady, BrokerError), closing(open_store_of(self._conf)) as store:  # ``start`` waits
            meet_broker(self._app, store)

    def start(self) -> None:
        conf = self._conf
        conf.check()
        tune_process()
        limits, clock, stamps = limits_of(conf), SystemClock(), RevokedStamps()
        depths = depths_of(limits.depths)
        # A restarted container has the same host name and process id, and must not be taken for the former one.
        holder = f"{socket.gethostname()}/{secrets.token_hex(3)}/{os.getpid()}"
        store, others = self._register(holder, clock)
        self._stops.callback(store.close)
        self.started = True
        logger.info("the store is %s", store.name, extra={"action": "store", "store": store.name})
        _warn_of_server(store)
        # People who may ask a node need not have a key.
        mask = Mask([*conf.mask, *(("argsrepr", "kwargsrepr") if conf.encryption_keys else ())])
        node = Node(self._app, SchedulerView(node_name(holder, others), store, self._held, stamps, mask))
        self._stops.callback(node.join)
        self._stops.callback(close_brokers, self._brokers)
        on_cancelled, on_overlap = node.revoked_state(), partial(cancel_replaced, self._app, store)
        engines, readings = [], ClockReadings(clock)
        for shard in range(conf.shards):
            # Each engine has a connection of its own, so that a blocked connection delays no other shard.
            broker = broker_for(self._app, conf, store)
            self._brokers.append(broker)
            queues = DeclaredQueues(self._app)
            renderer = ScheduleRenderer(self._app, conf.max_message_bytes, broker.decode, self._apply_entry, queues)
            self._stops.callback(renderer.close)
            engine = Engine(
                shard,
                holder,
                store,
                broker,
                clock,
                limits,
                on_cancelled=on_cancelled,
                stamps=stamps,
                depths=depths,
                renderer=renderer,
                on_overlap=on_overlap,
                on_published=DispatchSpans(shard) if conf.opentelemetry else None,
                shard_of=partial(shard_of, task_id="", shards=conf.shards),
                readings=readings,
                log=self.retries,
            )
            engines.append(engine)
        pool = self._pool
        self._runner = runner = Runner(*engines, lease_ms=conf.lease_ms, poll_ms=conf.poll_interval_ms, pool=pool)
        self._stops.callback(runner.stop)
        role = Role.CHILD if self._process > 1 else Role.PARENT if conf.processes > 1 else Role.ANY
        reach = BrokerReach(engines, pool)
        self._stops.callback(reach.stop)
        balance = Balance(store, holder, engines, pool=pool, role=role, reach=reach)
        self._stops.callback(balance.stop)
        self._stops.callback(setattr, self, "_runner", None)
        balance.start()
        runner.start()
        self._show(store)
        if conf.control:
            self._stops.callback(node.stop)  # a node takes up to a second to stop, and no shard waits for it
            node.start()

    def _register(self, holder: str, clock: Clock) -> tuple[FullStore, list[str]]:
        """Open the store when it is ready; return it with the names of the schedulers alive. Raises StoreConflict."""
        backoff, log = Backoff(RETRY_FIRST_S, RETRY_MOST_S), RetryLog(logger, time.monotonic)
        why: WheelError
        while True:
            try:
                store = open_store_of(self._conf)
                try:
                    meet_broker(self._app, store)
                    return store, store.register_scheduler(holder, clock.now_ms(), SILENT_MS)
                except BaseException:
                    store.close()
                    raise
            except StoreError as error:
                if isinstance(error, StoreUnusable) and not isinstance(error, StoreNotReady):
                    raise
                name, why = "store", error
            except BrokerError as error:
                name, why = "broker", error
            log.write(logging.WARNING, f"{name}_not_ready", "beat waits for its %s: %s", name, why)
            notify(f"STATUS=waits for its {name}")
            time.sleep(backoff.failed())

    def _show(self, store: FullStore) -> None:
        """Show this process to monitoring and, where it is beat's own, to systemd."""
        self._monitoring = monitoring = Monitoring(self._conf, self._process, self._engines, store, self._pool)
        self._stops.callback(monitoring.stop)
        monitoring.start()
        if self._process == 1:
            watchdog = Watchdog(self._pool, lambda: not monitoring.health.not_live(), self._summary)
            self._stops.callback(watchdog.stop)
            self._stops.callback(notify, "STOPPING=1")
            watchdog.start()
            notify(f"READY=1\nSTATUS={self._summary()}")

    def holds(self, shard: int) -> bool:
        engines = self._engines()
        return bool(engines) and engines[shard].held

    def report_sources(self, found: dict[str, Any]) -> None:
        """Show the state of the sources of schedules in the status of shard 0, whose holder follows them."""
        for engine in self._engines()[:1]:
            engine.stats.sources = found

    def count_process_end(self) -> None:
        """Count the unexpected end of another process of this scheduler, in the status of shard 0."""
        for engine in self._engines()[:1]:
            engine.stats.add(process_ends=1)

    def _engines(self) -> Sequence[Engine]:
        """Return the engines, by shard; none before the start and after the stop."""
        runner = self._runner
        return runner.engines if runner is not None else ()

    def _held(self) -> list[int]:
        return [engine.shard for engine in self._engines() if engine.held]

    def _summary(self) -> str:
        return f"holds {len(self._held())} of {len(self._engines())} shards"

    def raise_failure(self) -> None:
        """Raise the error that ended a job, or name one that is stuck for good: the supervisor restarts the process."""
        if self._pool.failure is not None:
            name, error = self._pool.failure
            raise WheelError(f"the job {name} ended: {error!r}; {NOTHING_LOST}") from error
        monitoring = self._monitoring
        if monitoring is None or all(one.seconds < ENDS_S for one in self._pool.stuck()):
            return
        if found := monitoring.health.not_live():
            raise WheelError(f"{'; '.join(found)}; {NOTHING_LOST}")

    def stop(self) -> None:
        self._stops.close()


def _warn_of_server(store: FullStore) -> None:
    """Log the settings of the store's server by which it loses what the store has acknowledged."""
    try:
        server = store.browse.server()
    except StoreError as error:  # each engine's own call reports the error
        logger.info("%s", error, extra={"action": "server"})
        return
    for name, text, remedy in () if server is None else server.risks:
        logger.warning("the store %s: %s. %s", store.name, text, remedy, extra={"action": "server", "setting": name})


def close_brokers(brokers: Sequence[Broker]) -> None:
    """Close broker edges, all at the same time. A call that hangs holds its edge: it is left to the process's end."""
    ended, hanging = wait([in_thread(one.close, "wheel-close") for one in brokers], CLOSE_S)
    for error in filter(None, (one.exception() for one in ended)):  # each transport has its own; nothing is lost
        logger.warning("a connection to the broker ended with %r", error, extra={"action": "broker_not_closed"})
    if hanging:
        logger.warning(
            "%d of %d connections to the broker are not closed after %g s; they end with the process",
            len(hanging),
            len(brokers),
            CLOSE_S,
            extra={"action": "broker_not_closed"},
        )


def node_name(holder: str, alive: list[str]) -> str:
    """Return ``wheel@beat.host``, or ``wheel-<pid>@beat.host`` where another scheduler runs on the host already.

    Monitoring often shows the part after the @ alone, and a worker of the host has the host's bare name there.
    """
    host, _, pid = holder.split("/")
    alone = not any(one != holder and one.split("/")[0] == host for one in alive)
    return f"wheel@beat.{host}" if alone else f"wheel-{pid}@beat.{host}"


def open_store_of(conf: Conf) -> FullStore:
    make_state_folder(conf.store)
    return open_store(
        conf.store, durability=conf.durability, shards=conf.shards, lease_ms=conf.lease_ms, keys=conf.encryption_keys
    )


def limits_of(conf: Conf) -> Limits:
    destinations = destinations_of(conf.app)
    return Limits(
        tick_ms=conf.tick_ms,
        wheel_size=conf.size,
        window_ms=conf.window_ms,
        window_count=conf.window_count,
        window_bytes=conf.window_bytes,
        chunk_count=conf.chunk,
        lease_ms=conf.lease_ms,
        retention_ms=conf.history_retention_ms,
        retentions={name: ms for name, ms in conf.retention.items() if ms < conf.history_retention_ms},
        history_bytes=conf.history_max_bytes,
        archived_only=conf.history_archive,
        audit_ms=conf.audit_retention_ms,
        audit_programs=conf.audit_programs,
        max_clock_skew_ms=conf.max_clock_skew_ms,
        replay_on_rollback=conf.on_broker_rollback == "replay",
        rollback_window_ms=conf.rollback_window_ms,
        lane_idle_ms=max(Limits().lane_idle_ms, conf.rollback_window_ms),
        look_ahead_ms=conf.look_ahead_ms,
        # A shard's part of each rate: tasks are spread evenly over the shards.
        rates={name: Rate(count, per_ms * conf.shards) for name, (count, per_ms) in conf.rate_limits.items()},
        groups={name: _limit(values) for name, values in conf.limits.items()},
        depths=conf.queue_depth,
        unsigned=conf.unsigned if signing_keys(conf.signing_keys) else "accept",
        refusal=None if destinations.allowed is None else RouteRefusals(destinations).__getitem__,
    )


def _limit(values: LimitValues) -> Limit:
    rate = None if values.rate is None else Rate(*values.rate)
    return Limit(
        values.concurrency, rate, values.weight or Limit().weight, values.max_runtime_ms or Limit().max_runtime_ms
    )
