"""Power cuts of a stack on either store: live ones under load, or at points of a recorded run.

::

    stack_of_cuts("postgresql", folder, seed)    cuts.StackOfCuts or server_cuts.StackOfServerCuts, on a Redis
    live(stack, 200)                             cuts while it runs
    recorded(stack, 10_000, 30, rng)             one run of 30 s, cut at 10,000 of its writes
"""

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults.contents import Recover, postgresql_in, sqlite_in
from tests.faults.cuts import CutVerdict, StackOfCuts
from tests.faults.points import PointsVerdict, cut, record
from tests.faults.server_cuts import SmallServer, StackOfServerCuts
from tests.kit.servers.redis import RedisServer


@contextmanager
def stack_of_cuts(
    store: str, folder: Path, seed: int, durability: str = "disk", fsync: str = "on"
) -> Iterator[StackOfCuts]:
    """Yield a stack that is not started yet, on a Redis."""
    with ExitStack() as servers:
        redis = servers.enter_context(RedisServer(folder / "redis"))
        rng = random.Random(seed)
        if store == "sqlite":
            yield StackOfCuts(folder / "stack", redis, rng, durability)
        else:
            server = servers.enter_context(SmallServer(fsync=fsync))
            yield StackOfServerCuts(folder / "stack", redis, server, rng, durability)


def live(stack: StackOfCuts, cuts: int) -> CutVerdict:
    """Cut so many times, or up to ten times as often until a cut finds something unsynced: a fast disk has it rarely.

    Returns the verdict.
    """
    with stack:
        while stack.verdict.cuts < cuts or (not stack.verdict.with_unsynced and stack.verdict.cuts < 10 * cuts):
            stack.cut()
            print(f"\r{stack.verdict.cuts} cuts, {len(stack.messages)} messages", end="", file=sys.stderr, flush=True)
        return stack.judge()


def recorded(stack: StackOfCuts, points: int, seconds: float, rng: random.Random, deaf: str = "") -> PointsVerdict:
    """Record a run, and cut it at so many points."""
    recording = record(stack, seconds)
    print(f"{len(recording.events):,} records, {len(recording.promises):,} promises")
    return cut(recording, points, rng, reader_of(stack), deaf)


def reader_of(stack: StackOfCuts) -> Recover:
    """Return a function that reads the stack's store after a cut."""
    scratch = stack.place.parent / "scratch"
    return postgresql_in(scratch) if isinstance(stack, StackOfServerCuts) else sqlite_in(scratch)
