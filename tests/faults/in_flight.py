"""The judge of groups reads the log of the workers alone: no group has more tasks in flight than its limit. Pure.

::

    ["begin", group, id, is_marked, [number, due_ms], process, at_ms, publication]     a run has begun, or ended: "end"
    ["kill", [process, …], at_ms]                                                      written just before the kill

    dispatched ─────► begin ───────► end                                in flight until the end
    dispatched ─────► begin ─► kill ─────► begin again ─► end           the message went back: until the end
    dispatched ─────► begin ─► kill                                     in flight until the kill
    dispatched ─────► … max_runtime is over                             beside the limit from then on

The publication is the dispatch id of a message, which has the time of its dispatch in it. A task that is delivered
again has its former publication. A second copy of a task shares the slot of the first one.
"""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.judge import CLOCK_MS


@dataclass(slots=True)
class Flight:
    """A task that has begun."""

    group: str
    due_ms: int
    began_ms: int
    dispatched_ms: int
    over_ms: int | None = None  #: its first end, or the last kill
    has_ended: bool = False
    publications: dict[str, bool] = field(default_factory=dict)  #: publication → whether it is marked


@dataclass(slots=True)
class FlightVerdict:
    began: int = 0  #: tasks
    published: int = 0  #: tasks, by the broker's log; else those that began
    killed: int = 0  #: runs under way at a kill
    twice: int = 0  #: published twice
    twice_wrong: list[int] = field(default_factory=list)  #: … though the broker fences, or without a mark
    early: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    worker_lost: list[int] = field(default_factory=list)  #: published by the broker's log, and never begun
    missing: int = 0  #: tasks that are neither pending nor published
    above: dict[str, tuple[int, int]] = field(default_factory=dict)  #: group → the most in flight, its limit
    at_limit: int = 0  #: groups that had as many tasks in flight as they may
    waits_ms: list[int] = field(default_factory=list)  #: from due to begin, sorted

    def broken(self) -> dict[str, Any]:
        """Return what broke a promise, with some examples each."""
        found = {
            "lost": self.lost[:5],
            "missing": self.missing,
            "early": self.early[:5],
            "twice": self.twice_wrong[:5],
            "above": self.above,
        }
        return {name: one for name, one in found.items() if one}

    def __str__(self) -> str:
        waits = self.waits_ms or [0]
        shown = ", ".join(f"{name} {waits[int(part * (len(waits) - 1))]:,} ms" for name, part in _PARTS.items())
        return (
            f"{self.began:,} tasks began, {self.killed} runs were killed; {len(self.lost) + self.missing} tasks lost, "
            f"{len(self.worker_lost)} lost by a killed worker, {len(self.early)} early, {self.twice} published twice, "
            f"{len(self.twice_wrong)} of them wrongly; {len(self.above)} groups above their limit, {self.at_limit:,} "
            f"at it; from due to begin: {shown}"
        )


_PARTS = {"median": 0.5, "99 of 100": 0.99, "most": 1.0}


def judge_flights(
    lines: Iterable[list[Any]],
    limit_of: Mapping[str, int],
    max_runtime_ms: int,
    expected: Iterable[int],
    published: Mapping[int, int] | None = None,
) -> FlightVerdict:
    """Judge a log.

    Args:
        limit_of: tasks that may be in flight, by the class of a group.
        expected: the numbers of the tasks that have to be in the log.
        published: how often each task was published, by the broker's log: once. Without such a log a marked copy of a
            task is allowed.
    """
    verdict = FlightVerdict()
    flights = _read(lines, verdict)
    absent = set(expected) - flights.keys()
    verdict.worker_lost = sorted(absent & (published or {}).keys())
    verdict.lost = sorted(absent - set(verdict.worker_lost))
    by_group = defaultdict[str, list[Flight]](list)
    for number, flight in flights.items():
        by_group[flight.group].append(flight)
        if flight.began_ms < flight.due_ms - CLOCK_MS:
            verdict.early.append(number)
        if (copies := len(flight.publications)) > 1:
            verdict.twice += 1
            if published is None and sum(flight.publications.values()) < copies - 1:
                verdict.twice_wrong.append(number)
    verdict.twice_wrong += [number for number, count in (published or {}).items() if count > 1]
    for group, some in by_group.items():
        most, limit = most_at_once(some, max_runtime_ms), limit_of[group.partition(":")[0]]
        verdict.at_limit += most == limit
        if most > limit:
            verdict.above[group] = most, limit
    verdict.began = len(flights)
    verdict.published = len(flights if published is None else published)
    verdict.waits_ms = sorted(one.began_ms - one.due_ms for one in flights.values() if one.due_ms)
    return verdict


def _read(lines: Iterable[list[Any]], verdict: FlightVerdict) -> dict[int, Flight]:
    flights: dict[int, Flight] = {}
    running: dict[int, Flight] = {}  #: by process
    for step, *rest in lines:
        if step == "kill":
            processes, at_ms = rest
            for killed in [running.pop(one) for one in processes if one in running]:
                verdict.killed += 1
                if not killed.has_ended:
                    killed.over_ms = at_ms
            continue
        group, _, marked, (number, due_ms), process, at_ms, publication = rest
        if step == "begin":
            dispatched_ms = uuid.UUID(publication).int >> 80
            flight = flights.setdefault(number, Flight(group, due_ms, at_ms, dispatched_ms))
            flight.publications[publication] = marked
            if not flight.has_ended:
                flight.over_ms = None
            running[process] = flight
        elif (ended := running.pop(process, None)) is not None and not ended.has_ended:
            ended.has_ended, ended.over_ms = True, at_ms
    return flights


def most_at_once(flights: Iterable[Flight], max_runtime_ms: int) -> int:
    """Return the most tasks of a group that were in flight at a time, without those past their max_runtime."""
    steps = []
    for one in flights:
        from_ms, upto_ms = one.dispatched_ms + CLOCK_MS, one.dispatched_ms + max_runtime_ms
        if one.over_ms is not None:
            upto_ms = min(upto_ms, one.over_ms)
        if from_ms < upto_ms:
            steps += [(from_ms, 1), (upto_ms, -1)]
    now = most = 0
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most
