"""Many seeds of each world, in parts that add up: seeds, seconds, broken promises, and which fault met which step."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.happenings import Violation
from tests.simulation.meetings import Meetings
from tests.simulation.worlds import WORLDS, violation_of

SEEDS_AT_ONCE = 25

#: Steps and faults that are to meet.
Aims = frozenset[tuple[str, str]]


@dataclass
class Tally:
    seeds: Counter[str] = field(default_factory=Counter)  #: by world
    seconds: Counter[str] = field(default_factory=Counter)  #: of CPU
    violations: list[str] = field(default_factory=list)
    meetings: Meetings = field(default_factory=Meetings)

    @classmethod
    def of(cls, file: Path | None) -> Tally:
        """Return what the earlier parts found; nothing where there is none."""
        if file is None or not file.exists():
            return cls()
        kept = json.loads(file.read_text())
        tally = cls(Counter(kept["seeds"]), Counter(kept["seconds"]), kept["violations"])
        meetings = tally.meetings
        meetings.seen.update(kept["seen"])
        for counts, rows in ((meetings.met, kept["met"]), (meetings.asked, kept["asked"])):
            counts.update({(step, fault): count for step, fault, count in rows})
        return tally

    def add(self, part: Tally) -> None:
        self.seeds.update(part.seeds)
        self.seconds.update(part.seconds)
        self.violations += part.violations
        self.meetings.add(part.meetings)

    def keep(self, file: Path | None) -> None:
        if file is None:
            return
        met, asked = ([[*pair, n] for pair, n in one.items()] for one in (self.meetings.met, self.meetings.asked))
        kept = {"seeds": self.seeds, "seconds": self.seconds, "violations": self.violations}
        file.write_text(json.dumps({**kept, "seen": self.meetings.seen, "met": met, "asked": asked}))

    def report(self) -> Iterator[str]:
        yield from self.meetings.table()
        yield ""
        for name, count in self.seeds.items():
            yield f"{name:<20} {count:>7} seeds, {count / max(self.seconds[name], 0.001):.1f} a second of CPU"
        yield f"{sum(self.seeds.values())} seeds, {len(self.violations)} broken promises"
        yield from self.violations
        yield from (f"never met: {step} and {fault}" for step, fault in self.meetings.empty())


def run_many(names: Sequence[str], first: int, end: int, tally: Tally, aims: Aims = frozenset()) -> None:
    """Run the seeds from ``first`` up to and not including ``end`` of each world, on every core."""
    # The slowest worlds, which are the last, come first: no core waits long for another at the end.
    parts = [
        (name, at, min(at + SEEDS_AT_ONCE, end), aims)
        for name in reversed(names)
        for at in range(first, end, SEEDS_AT_ONCE)
    ]
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        for part in pool.map(run_part, *zip(*parts, strict=True)):
            tally.add(part)


def run_part(name: str, first: int, end: int, aims: Aims = frozenset()) -> Tally:
    """Return what the seeds of a world showed; broken promises are counted, and the rest runs."""
    tally, began_s = Tally(), time.process_time()
    for seed in range(first, end):
        world = WORLDS[name](seed)
        world.aims = aims
        try:
            world.run()
        except Violation as violation:
            what, again = str(violation).partition("\n")[0], f"python -m tests.simulation seed {seed} {name} --minimise"
            if aims and violation_of(WORLDS[name], seed) is None:
                again += "".join(f" --aim {step!r} {fault!r}" for step, fault in sorted(aims))
            tally.violations.append(f"{what}: {again}")
        if isinstance(meetings := getattr(world, "meetings", None), Meetings):
            tally.meetings.add(meetings)
    tally.seeds[name] += end - first
    tally.seconds[name] += time.process_time() - began_s
    return tally
