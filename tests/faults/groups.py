"""Groups with limits under ``kill -9`` of schedulers and workers, beside the backlog of one group.

::

    python -m tests.faults.groups --pair redis-sqlite [--kills 200] [--worker-kills 50] [--backlog 1000000] [--seed 7]
    python -m tests.faults.groups --pair rabbitmq-postgresql --outage store [--minutes 57] [--backlog 30000] …

    backlog of one group ─┐              scheduler a ─┐             ┌─► worker a ─┐ prefork
    tasks of all others  ─┴─► store ◄──► scheduler b ─┴─► a queue ──┴─► worker b ─┴─► a log, read by ``in_flight``

A worker is killed in one of three ways by turns: a child; the parent, so that its children are left alone; all at once.
Tasks are acknowledged late: the message of a killed worker is delivered again. On Redis a worker may lose a message
that it has just popped (see ``judge``), and the log of Redis tells that from one that was never published. The backlog
need not drain: at the end each of its tasks was published or is pending. With ``--outage`` nobody is killed: the broker
or the store is stopped for three fifths of the time, and the schedulers' memory is printed.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from tests.faults.in_flight import FlightVerdict, judge_flights
from tests.faults.judge import WHOLE_LOG, published_by
from tests.faults.killing import PAUSES_S, KilledSchedulers
from tests.faults.load import SCHEDULERS, SETTINGS
from tests.kit.patience import patience, wait_until
from tests.kit.project import read_lines, write_line
from tests.kit.servers import Server
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Broker
from tests.soak.ledger import number_of, task_id

PAIRS = ("redis-sqlite", "rabbitmq-postgresql")

#: Tasks in flight, by class.
LIMITS = {"one": 1, "two": 2, "three": 3, "rated": 2}

RATES = {"rated": {"rate": "5/s"}}

BACKLOG = "three:backlog"

WORKERS = ("worker-a", "worker-b")

CHILDREN = 6

#: The work of a task, in milliseconds.
WORK_MS = (10, 150)

#: Messages that are ready in the queue at most, by the setting.
DEPTH = 60

#: Part of the groups that gets half of the tasks.
BUSY = 0.01

#: Children of a killed parent end by themselves in this time, or are killed.
ORPHANS_S = 2.0


@dataclass(frozen=True)
class Plan:
    groups: int = 10_000
    backlog: int = 1_000_000
    tasks: int = 35_000  #: of the other groups
    kills: int = 200
    worker_kills: int = 50
    max_runtime_s: int = 40
    visible_s: int = 15  #: after which Redis's messages of a killed worker are delivered again
    minutes: int = 0  #: of a run with an outage

    @property
    def ms(self) -> int:
        """Milliseconds in which the tasks of the other groups are due: about as long as the run takes."""
        return 60_000 * self.minutes or int(1_000 * self.kills * sum(PAUSES_S) / 2)


SHORT = Plan(groups=100, backlog=2_000, tasks=300, kills=4, worker_kills=3, max_runtime_s=5, visible_s=2)


class StackWithGroups(KilledSchedulers):
    def __init__(self, folder: Path, server: Broker | str, store: str, rng: random.Random, plan: Plan) -> None:
        self.is_redis = isinstance(server, RedisServer)
        visible = {"broker_transport_options": {"visibility_timeout": plan.visible_s}} if self.is_redis else {}
        limits = {
            name: {"concurrency": limit, "max_runtime": plan.max_runtime_s, **RATES.get(name, {})}
            for name, limit in LIMITS.items()
        }
        depth = {"celery": DEPTH}
        super().__init__(
            folder, server, store, rng, wheel_limits=limits, wheel_queue_depth=depth, **SETTINGS, **visible
        )
        self.plan = plan
        self.worker_kills = 0
        self.log = folder / "spans"
        self.store_server: Server | None = None

    def __enter__(self) -> Self:
        self.start_schedulers()
        for name in WORKERS:
            self.start_worker(name)
        for rows in (self._backlog(), self._others()):
            self.app.wheel.schedule_many(rows)
        return self

    # -- load ----------------------------------------------------------------------------------------

    def _row(self, number: int, due_ms: int, group: str, eta_ms: int) -> dict[str, Any]:
        kwargs = {"tag": [number, due_ms], "ms": self.rng.randint(*WORK_MS)}
        return {"task": "span", "kwargs": kwargs, "eta": eta_ms, "group": group, "task_id": task_id(number)}

    def _backlog(self) -> Iterator[dict[str, Any]]:
        """Its tasks are due at once; their waits are no figure."""
        now_ms = time.time_ns() // 1_000_000
        return (self._row(self.plan.tasks + number, 0, BACKLOG, now_ms) for number in range(self.plan.backlog))

    def _others(self) -> Iterator[dict[str, Any]]:
        """Each group has a task at least, and a few have half of all tasks."""
        groups = [f"{name}:{number}" for name, number in zip(itertools.cycle(LIMITS), range(1, self.plan.groups))]
        busy = groups[: max(4, int(BUSY * len(groups)))]
        now_ms = time.time_ns() // 1_000_000
        for number in range(self.plan.tasks):
            group = self.rng.choice(busy) if number % 2 else groups[number // 2 % len(groups)]
            due_ms = now_ms + self.rng.randrange(self.plan.ms)
            yield self._row(number, due_ms, group, due_ms)

    # -- kills ---------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> None:
        options = ("-c", str(CHILDREN), "-l", "WARNING", "--without-gossip", "--without-mingle", "-n", f"{name}@%h")
        self.celery("worker", *options, name=name)

    def kill_worker(self) -> None:
        """Kill a child, the parent or all processes of a worker."""
        name = self.rng.choice(WORKERS)
        worker, way = self[name], self.worker_kills % 3
        parent, *children = worker.family()
        self.worker_kills += 1
        if way == 0 and children:
            begun = {line[5]: place for place, line in enumerate(read_lines(self.log)) if line[0] == "begin"}
            self._kill([max(children, key=lambda one: begun.get(one.pid, -1))])  # it is likely at work
            return  # the parent starts another one
        if way == 1:
            self._kill([parent])
            _, children = psutil.wait_procs(children, ORPHANS_S)
            self._kill(children)
        else:
            self._kill([parent, *children])
        worker.kill()
        self.start_worker(name)

    def _kill(self, processes: list[psutil.Process]) -> None:
        write_line(self.log, ["kill", [one.pid for one in processes], time.time_ns() // 1_000_000])
        for one in processes:
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def be_without(self, server: Server) -> None:
        """Run for the minutes of the plan, and in the middle of them without a server."""
        for step, part in ((server.stop, 0.2), (server.start, 0.6), (None, 0.2)):
            self._run(60 * self.plan.minutes * part)
            if step is not None:
                step()

    def _run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 180))
            sizes = [psutil.Process(self[name].pid).memory_info().rss >> 20 for name in SCHEDULERS]
            print(f"{left_s:.0f} s left, schedulers: {sizes} MiB, {self.judge().began:,} tasks began", flush=True)

    def kill_once(self) -> None:
        """Kill a scheduler after a pause, and a worker as often as the plan says."""
        self.kill_after_a_pause()
        if self.worker_kills * self.plan.kills < self.plan.worker_kills * self.kills:
            self.kill_worker()

    # -- the end -------------------------------------------------------------------------------------

    def settle(self, seconds: float = 60) -> FlightVerdict:
        """Wait until the tasks of the other groups have begun, end the schedulers, and judge.

        Args:
            seconds: the longest wait; the judge counts what is missing then.
        """
        until_s = time.monotonic() + patience(seconds)
        self._wait(lambda: not self.judge().lost, until_s)
        for name in SCHEDULERS:
            self[name].terminate()
        left = self.plan.tasks + self.plan.backlog - sum(self.pending())
        self._wait(lambda: self.judge().published >= left, until_s)
        self._wait(lambda: not self.judge().worker_lost, min(until_s, time.monotonic() + 3 * self.plan.visible_s))
        verdict = self.judge()
        verdict.missing = left - verdict.published
        return verdict

    def _wait(self, reached: Callable[[], bool], until_s: float) -> None:
        while not reached() and time.monotonic() < until_s:
            with suppress(AssertionError):
                wait_until(reached, "all tasks have begun", self.plan.visible_s, every_s=self.plan.visible_s / 5)
                return
            self[WORKERS[0]].terminate()  # a worker that starts looks for the messages of killed ones
            self.start_worker(WORKERS[0])

    def judge(self) -> FlightVerdict:
        """Judge what has happened so far."""
        published = None
        if self.is_redis:
            published = {number_of(id_): count for id_, count in published_by(self.server.folder, "celery").items()}
        runtime_ms = 1_000 * self.plan.max_runtime_s
        return judge_flights(read_lines(self.log), LIMITS, runtime_ms, range(self.plan.tasks), published)


def redis_with_log(folder: Path) -> RedisServer:
    """Return a Redis that keeps its whole log; it is not killed, so that it may leave writes to the system."""
    return RedisServer(folder / "redis", **{**WHOLE_LOG, "appendfsync": "no"})


@contextmanager
def stack_on(pair: str, folder: Path, plan: Plan, seed: int) -> Iterator[StackWithGroups]:
    with ExitStack() as servers:
        broker: Broker
        postgres: PostgresServer | None = None
        if pair == "redis-sqlite":
            broker, store = servers.enter_context(redis_with_log(folder)), f"sqlite:///{folder}/wheel.sqlite3"
        else:
            broker = servers.enter_context(RabbitServer(folder / "rabbitmq"))
            postgres = servers.enter_context(PostgresServer(fsync="on"))
            store = postgres.url()
        stack = StackWithGroups(folder, broker, store, random.Random(seed), plan)
        stack.store_server = postgres
        yield servers.enter_context(stack)


def main() -> int:
    plan = Plan()
    parser = argparse.ArgumentParser(prog="python -m tests.faults.groups", description=__doc__)
    parser.add_argument("--pair", choices=PAIRS, default=PAIRS[0])
    for name in ("groups", "backlog", "tasks", "kills", "worker-kills"):
        parser.add_argument(f"--{name}", type=int, default=getattr(plan, name.replace("-", "_")))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--outage", choices=("broker", "store"))
    parser.add_argument("--minutes", type=int, default=57)
    options = vars(parser.parse_args())
    pair, seed, outage = options.pop("pair"), options.pop("seed"), options.pop("outage")
    if outage:
        options |= {"kills": 0, "worker_kills": 0}
    else:
        options["minutes"] = 0
    if (outage, pair) == ("store", PAIRS[0]):
        parser.error("SQLite is a file: it has no outage")
    plan = Plan(**options)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, stack_on(pair, Path(folder), plan, seed) as stack:
        began = time.monotonic()
        if outage and (server := stack.server if outage == "broker" else stack.store_server):
            stack.be_without(server)
        while stack.kills < plan.kills:
            stack.kill_once()
            print(f"\r{stack.kills}, {stack.worker_kills} kills", end="", file=sys.stderr, flush=True)
        verdict = stack.settle(240)
        print(
            f"\n{pair}, seed {seed}: {stack.kills} kills of schedulers, {stack.kills_of_holders} of holders, "
            f"{stack.worker_kills} of workers, in {time.monotonic() - began:.0f} s, beside a backlog of "
            f"{plan.backlog:,}: {verdict}"
        )
        if broken := verdict.broken():
            print(broken)
        return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
