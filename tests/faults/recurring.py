"""Two schedulers under ``kill -9``, whose schedules are due every second to every minute.

::

    python -m tests.faults.recurring --store postgresql --kills 200 [--seed 7]

    scheduler a ─┐ store, 3 shards
    scheduler b ─┘   └─► Redis ─► consumer, in this process: (schedule, scheduled_for) of every message
                                     └─ judged by ``instants``, and by the skips in the history: there are none
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.faults.instants import PLANS, Arrival, InstantVerdict, expected, judge_instants
from tests.faults.killing import KilledSchedulers
from tests.kit.patience import patience, wait_until
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.redis import RedisServer


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class StackWithSchedules(KilledSchedulers):
    """Two schedulers, schedules, and a consumer that takes every message from its queue.

    Args:
        copies: so many schedules of each of ``PLANS``.
        way_of_a: the URL of the store for the first scheduler, where it is another.
    """

    def __init__(
        self, folder: Path, server: RedisServer, store: str, rng: random.Random, copies: int = 1, way_of_a: str = ""
    ) -> None:
        super().__init__(folder, server, store, rng, way_of_a)
        self.plans = [replace(plan, copy=copy) for plan in PLANS for copy in range(copies)]
        self.arrivals: list[Arrival] = []
        self.asked_ms = self.answered_ms = 0
        self._over = threading.Event()
        self._consumer = threading.Thread(target=self._consume, args=(server.client(),))

    def __enter__(self) -> Self:
        self._consumer.start()
        self.start_schedulers()
        self.asked_ms = now_ms()
        wanted = {plan.name: plan.arguments() for plan in self.plans}
        answers = self.app.wheel.schedules.create_many(wanted, timeout=patience())  # shards change hands meanwhile
        self.answered_ms = now_ms()
        assert {one.result for one in answers.values()} == {"done"}, answers
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._consumer.join()
        self.close()

    def _consume(self, client: Any) -> None:
        while not self._over.is_set():
            if found := client.brpop(["celery"], timeout=1):
                self.on_message(json.loads(found[1]))

    def on_message(self, message: dict[str, Any]) -> None:
        occurrence = message["headers"]["wheel_occurrence"]
        instant = occurrence["schedule"], occurrence["scheduled_for"]
        self.arrivals.append(Arrival(*instant, now_ms(), message["headers"]["id"]))

    def skips(self) -> dict[str, list[Any]]:
        found = {plan.name: self.app.wheel.schedules.history(plan.name) for plan in self.plans}
        return {name: list(history.skips) for name, history in found.items() if history is not None and history.skips}

    def has_arrived(self, instant_ms: int) -> bool:
        return any(one.instant_ms >= instant_ms for one in list(self.arrivals))

    def settle(self, seconds: float = 30) -> InstantVerdict:
        """Wait until the instants up to now have arrived, and judge."""
        end_ms = now_ms()
        sure = expected(self.plans, self.answered_ms, end_ms)
        with suppress(AssertionError):  # the judge counts the missing ones
            wait_until(lambda: not sure - {one[:2] for one in list(self.arrivals)}, "all instants arrive", seconds)
            wait_until(lambda: self.has_arrived(end_ms + 1_000), "later instants arrive", seconds)
        return judge_instants(self.plans, list(self.arrivals), self.asked_ms, self.answered_ms, end_ms)


@contextmanager
def stack_on(kind: str, folder: Path, seed: int, copies: int = 1) -> Iterator[StackWithSchedules]:
    """Yield a stack on a Redis and on a store of that kind, with fsync."""
    with ExitStack() as servers:
        redis = servers.enter_context(RedisServer(folder / "redis"))
        store = f"sqlite:///{folder}/wheel.sqlite3"
        if kind == "postgresql":
            store = servers.enter_context(PostgresServer(fsync="on")).url()
        yield servers.enter_context(StackWithSchedules(folder, redis, store, random.Random(seed), copies))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.recurring", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--copies", type=int, default=10, help="schedules of each plan")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as folder,
        stack_on(options.store, Path(folder), options.seed, options.copies) as stack,
    ):
        began = time.monotonic()
        while stack.kills < options.kills:
            stack.kill_after_a_pause()
            print(f"\r{stack.kills} kills, {len(stack.arrivals)} messages", end="", file=sys.stderr, flush=True)
        verdict = stack.settle(60)
        print(
            f"\n{options.store}, seed {options.seed}: {stack.kills} kills, {stack.kills_of_holders} of holders, "
            f"in {time.monotonic() - began:.0f} s: {verdict}; skips: {stack.skips() or 'none'}"
        )
        for what in ("missing", "twice", "strange", "early"):
            if found := getattr(verdict, what):
                print(what, found[:20])
        return int(not verdict.is_clean)


if __name__ == "__main__":
    sys.exit(main())
