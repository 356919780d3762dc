"""All faults by turns for a time: kills of every role, and power cuts; at the end one report of the counts.

::

    kills       scheduler, broker, database under load, each pair of a store and a broker       load, judge
    groups      schedulers and workers, with limits of groups                                   groups, in_flight
    instants    schedulers, with recurring schedules                                            recurring, instants
    cuts        the power of a store's host, live                                               cuts, server_cuts
    points      the power at points of a recorded run                                           points

A turn has servers, a folder and a seed of its own; the seed is one higher in each round of turns. A turn that fails is
a finding, and the others go on.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults import groups, recurring
from tests.faults.judge import WHOLE_LOG, published_by
from tests.faults.load import StackUnderLoad
from tests.faults.power_cuts import live, recorded, stack_of_cuts
from tests.kit.servers.postgres import PostgresServer
from tests.kit.servers.rabbit import RabbitServer
from tests.kit.servers.redis import RedisServer

STORES = ("sqlite", "postgresql")

#: Faults of a turn, and points of a recorded run.
KILLS, CUTS, POINTS = 10, 5, {"sqlite": 500, "postgresql": 50}


class Turn(NamedTuple):
    faults: int
    checked: int  #: tasks, instants of schedules or comparisons
    is_clean: bool
    said: str


def kills(store: str, broker: str, folder: Path, seed: int, faults: int = KILLS) -> Turn:
    with ExitStack() as servers:
        database = servers.enter_context(PostgresServer(fsync="on")) if store == "postgresql" else None
        place, is_redis = folder / "broker", broker == "redis"
        server: Any = servers.enter_context(RedisServer(place, **WHOLE_LOG) if is_redis else RabbitServer(place))
        url = f"sqlite:///{folder}/wheel.sqlite3" if database is None else database.url()
        stack = servers.enter_context(StackUnderLoad(folder / "stack", server, url, random.Random(seed)))
        stack.take_faults(faults, database)
        verdict = stack.settle(60, partial(published_by, place, "celery") if is_redis else None)
        return Turn(faults, verdict.scheduled, not verdict.broken(), f"{verdict} {verdict.broken()}")


def groups_with_limits(pair: str, folder: Path, seed: int) -> Turn:
    with groups.stack_on(pair, folder, groups.SHORT, seed) as stack:
        while stack.kills < groups.SHORT.kills:
            stack.kill_once()
        verdict = stack.settle()
        return Turn(
            stack.kills + stack.worker_kills, verdict.began, not verdict.broken(), f"{verdict} {verdict.broken()}"
        )


def instants(store: str, folder: Path, seed: int) -> Turn:
    with recurring.stack_on(store, folder, seed) as stack:
        while stack.kills < KILLS:
            stack.kill_after_a_pause()
        verdict = stack.settle()
        return Turn(stack.kills, verdict.expected, verdict.is_clean, str(verdict))


def cuts(store: str, folder: Path, seed: int) -> Turn:
    with stack_of_cuts(store, folder, seed) as stack:
        verdict = live(stack, CUTS)
        return Turn(CUTS, verdict.sent, verdict.is_clean, str(verdict))


def points(store: str, folder: Path, seed: int) -> Turn:
    with stack_of_cuts(store, folder, seed) as stack:
        verdict = recorded(stack, POINTS[store], 5, random.Random(seed))
        return Turn(verdict.points, verdict.checks.total(), verdict.is_clean, str(verdict))


TURNS: dict[str, Callable[[Path, int], Turn]] = {
    **{f"kills, {store}, {one}": partial(kills, store, one) for store in STORES for one in ("redis", "rabbitmq")},
    **{f"groups, {pair}": partial(groups_with_limits, pair) for pair in groups.PAIRS},
    **{f"instants, {store}": partial(instants, store) for store in STORES},
    **{f"cuts, {store}": partial(cuts, store) for store in STORES},
    **{f"points, {store}": partial(points, store) for store in STORES},
}


@dataclass(slots=True)
class Report:
    """The counts of all turns so far, by the name of the turn: rounds, faults, checked."""

    counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add(self, name: str, seed: int, turn: Turn) -> None:
        rounds, faults, checked = self.counts.get(name, (0, 0, 0))
        self.counts[name] = rounds + 1, faults + turn.faults, checked + turn.checked
        if not turn.is_clean:
            self.findings.append(f"{name}, seed {seed}: {turn.said}")

    def __str__(self) -> str:
        head = f"{'turn':28} {'rounds':>7} {'faults':>9} {'checked':>12}"
        lines = [f"{name:28} {one[0]:7,} {one[1]:9,} {one[2]:12,}" for name, one in self.counts.items()]
        return "\n".join([head, *lines, f"findings: {len(self.findings) or 'none'}", *self.findings])


def run(minutes: float, seed: int, turns: dict[str, Callable[[Path, int], Turn]] = TURNS) -> Report:
    """Run the turns until the time is over, and each once at least."""
    until_s, report = time.monotonic() + 60 * minutes, Report()
    while True:
        for name, turn in turns.items():
            if time.monotonic() > until_s and name in report.counts:
                return report
            print(f"{name}, seed {seed} …", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                try:
                    found = turn(Path(folder), seed)
                except Exception:
                    found = Turn(0, 0, False, traceback.format_exc(limit=-3))
            report.add(name, seed, found)
            print(f"    {found.said}", file=sys.stderr, flush=True)
        seed += 1
