"""Fourteen installations for fourteen faults, and one to which nothing happens.

An installation is a database of Redis or a Redis of its own, a store, and a scheduler that serves metrics. The name of
a fault is that of a method, which causes it and returns at once or when its effect is certain.
"""

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.patience import patience, wait_until
from tests.kit.processes import Process
from tests.kit.servers import free_port
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.prometheus import PrometheusServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack
from tests.kit.wall_clock import WallClock

DISK_BYTES = 32 * 2**20

#: More than the 10,000 of the rule, for an objective of a second.
HERD = 10_500

#: One more than the rule allows.
TAKEOVERS = 4

WELL = "well"


def job_of(name: str) -> str:
    return f"celery-wheel-{name}"


class Installations:
    """The installations, and a Prometheus with a job for each, from their start to the end of ``cleanup``.

    Args:
        names: faults, and WELL.
        rules: the file of the alert rules.
    """

    def __init__(self, folder: Path, cleanup: ExitStack, names: list[str], rules: Path) -> None:
        self._folder, self._cleanup = folder, cleanup
        self._clock = WallClock(folder)
        self._postgres = cleanup.enter_context(PostgresServer())
        self._redis = cleanup.enter_context(RedisServer(folder / "redis"))
        self.stacks: dict[str, Stack] = {}
        self._schedulers: dict[str, list[Process]] = {}
        jobs: dict[str, list[str]] = {}
        for name in names:
            self.stacks[name] = cleanup.enter_context(self._stack(name))
            schedulers = 1 + TAKEOVERS if name == "lease_flapping" else 1
            jobs[job_of(name)] = [f"127.0.0.1:{free_port()}" for _ in range(schedulers)]
            self._schedulers[name] = [self._start(name, address) for address in jobs[job_of(name)]]
        for name, stack in self.stacks.items():
            wait_until(lambda stack=stack: stack.holders().get(0), f"{name} has a holder")
            for scheduler in self._schedulers[name]:
                scheduler.wait_for("metrics are served")
        self.prometheus = cleanup.enter_context(PrometheusServer(folder / "prometheus", jobs, [rules], "1s"))

    def _stack(self, name: str) -> Stack:
        folder, settings = self._folder / name, dict[str, Any]()
        folder.mkdir()
        broker: Any = f"{self._redis.url.removesuffix('0')}{len(self.stacks)}"
        if name in ("broker_down", "rollback", "broker_emptied", "backlog"):
            broker = self._cleanup.enter_context(RedisServer(folder / "redis"))
        store = self._postgres.new_database() if name == "store_down" else ""
        if name == "disk_almost_full":
            store = f"sqlite:///{self._cleanup.enter_context(small_disk(folder / 'disk'))}/wheel.sqlite3"
        if name == WELL:
            settings["beat_schedule"] = {"daily": {"task": "tick", "schedule": 86_400.0}}
        if name == "queue_growing":
            settings["wheel_lease"] = 3_600  # the scheduler cannot renew it while the test locks the file
        return Stack(folder, broker, store, wheel_objective=1, wheel_control=False, **settings)

    def _start(self, name: str, address: str) -> Process:
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in (self._clock.environment if name == "clock_skew" else {}).items():
                patch.setenv(variable, value)
            return self.stacks[name].beat(wheel_metrics=address)

    # -- faults --------------------------------------------------------------------------------------

    def no_holder(self, stack: Stack) -> None:
        stack["beat"].kill()

    def broker_down(self, stack: Stack) -> None:
        self._accept(stack, patience(8))  # due while the broker is down
        stack.server.kill()

    def store_down(self, stack: Stack) -> None:
        self._postgres.kill()

    def clock_skew(self, stack: Stack) -> None:
        self._accept(stack, 30)  # due by the stepped clock, and not by due time
        self._clock.set(60_000)

    def backlog(self, stack: Stack) -> None:
        self._accept(stack, patience(8))
        stack.redis.config_set("maxmemory", 1)  # Redis answers, and refuses messages

    def herd(self, stack: Stack) -> None:
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=30)
        done = stack.app.wheel.schedule_many(("note", (n,), {}, at) for n in range(HERD))
        assert done.count == HERD

    def rejected_burst(self, stack: Stack) -> None:
        stack.redis.lpush("wheel.0", *(f"no message {n}" for n in range(30)))

    def paused_and_forgotten(self, stack: Stack) -> None:
        stack.app.wheel.pause(queue="celery")
        stack.send(0.1, 3)  # a paused task is not late

    def disk_almost_full(self, stack: Stack) -> None:
        stack.file.with_name("other").write_bytes(bytes(int(DISK_BYTES * 0.93)))

    def queue_growing(self, stack: Stack) -> None:
        connection = sqlite3.connect(stack.file, timeout=patience(), isolation_level=None)
        writer = self._cleanup.enter_context(closing(connection))
        writer.execute("BEGIN IMMEDIATE")  # until the test is over
        stack.send(1_000, 3)

    def lease_flapping(self, stack: Stack) -> None:
        """Kill the holder, again and again; each takeover is scraped."""
        query = f'celery_wheel_epoch{{job="{job_of("lease_flapping")}"}}'
        for _ in range(TAKEOVERS):
            epoch = stack.app.wheel.status()[0].epoch
            holder = stack.holders()[0]
            next(process for process in self._schedulers["lease_flapping"] if process.pid == holder).kill()
            wait_until(
                lambda epoch=epoch: max(self.prometheus.query(query).values(), default=0) > epoch, "it is scraped"
            )

    def rollback(self, stack: Stack) -> None:
        stack.send(0.1, 5)
        wait_until(lambda: len(stack.dispatched()) == 5, "the first tasks are dispatched")
        stack.server.client().save()
        stack.send(0.1, 5)
        wait_until(lambda: len(stack.dispatched()) == 10, "the next tasks are dispatched")
        wait_until(lambda: stack.pending() == [0], "they are settled")
        stack.server.restart()

    def broker_emptied(self, stack: Stack) -> None:
        stack.send(0.1, 5)
        wait_until(lambda: len(stack.dispatched()) == 5, "the tasks are dispatched")
        wait_until(lambda: stack.pending() == [0], "they are settled")
        stack.redis.flushall()

    def store_rolled_back(self, stack: Stack) -> None:
        """Lower the number of accepted messages, as a store has it that lost its last two."""
        self._accept(stack, 40_000)
        with closing(sqlite3.connect(stack.file, timeout=patience(), isolation_level=None)) as connection:
            connection.execute("UPDATE wheel_shard SET accepted = accepted - 2")

    def _accept(self, stack: Stack, countdown: float) -> None:
        stack.send(countdown, 5)
        wait_until(lambda: stack.pending() == [5], "the tasks are accepted")


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system in memory; only root may."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    assert mount is not None
    assert umount is not None
    folder.mkdir()
    subprocess.run([mount, "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run([umount, "--lazy", str(folder)], check=True)
