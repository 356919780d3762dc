"""Schedules of the fault tests, and an oracle of their instants that shares no code with the product. Pure.

::

    plan ─► values of app.wheel.schedules.create         the request to the product
         └► occurs(instant)                              every quarter of a second is tried, by plain zoneinfo

    sure   instants after the answer of ``create``, up to the end        each has to arrive
    may    from before ``create`` on                                     nothing else may arrive
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from celery_wheel.recurring import Crontab, Interval
from tests.faults.judge import CLOCK_MS

#: Each instant of a plan is a multiple of it.
GRID_MS = 250

#: Catch-up after any number of kills.
POLICY = {"catch_up": "all", "catch_up_window": 3_600}


@dataclass(frozen=True)
class Plan:
    """An interval in seconds, counted from an instant; or a crontab of seconds in a zone."""

    every_s: int = 0
    start_ms: int = 0
    second: str = ""
    minute: str = "*"
    zone: str = "UTC"
    copy: int = 0

    @property
    def name(self) -> str:
        if self.every_s:
            return f"{self.copy}: every {self.every_s} s from {self.start_ms}"
        return f"{self.copy}: at {self.minute} {self.second} in {self.zone}"

    def arguments(self) -> dict[str, Any]:
        if self.every_s:
            return {"recurrence": Interval(self.every_s * 1_000, self.start_ms), "task": "note", **POLICY}
        recurrence = Crontab(self.minute, second=self.second)
        return {"recurrence": recurrence, "zone": self.zone, "task": "note", **POLICY}

    def occurs(self, instant_ms: int) -> bool:
        if self.every_s:
            return instant_ms >= self.start_ms and (instant_ms - self.start_ms) % (self.every_s * 1_000) == 0
        utc = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=instant_ms)
        local = utc.astimezone(ZoneInfo(self.zone))
        return not local.microsecond and _allows(self.second, local.second) and _allows(self.minute, local.minute)

    def between(self, after_ms: int, upto_ms: int) -> Iterator[int]:
        first = after_ms - after_ms % GRID_MS + GRID_MS
        return (at for at in range(first, upto_ms + 1, GRID_MS) if self.occurs(at))


def _allows(field_: str, value: int) -> bool:
    """Whether a field like ``*``, ``*/5`` or ``13,47`` allows a value."""
    if field_.startswith("*"):
        return value % int(field_[2:] or 1) == 0
    return str(value) in field_.split(",")


PLANS = [
    *(Plan(every_s) for every_s in (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60)),
    *(Plan(every_s, start_ms=250 * every_s + 500) for every_s in (1, 2, 4, 6, 13, 60)),
    *(Plan(second=second) for second in ("*", "*/5", "13,47", "0")),
    Plan(second="*/10", zone="Asia/Kathmandu"),
    Plan(second="*/20", minute="*/2", zone="America/New_York"),
    Plan(second="7,8,9", zone="Australia/Lord_Howe"),
]


class Arrival(NamedTuple):
    name: str
    instant_ms: int
    arrived_ms: int
    task_id: str


@dataclass(slots=True)
class InstantVerdict:
    expected: int = 0
    arrived: int = 0
    missing: list[tuple[str, int]] = field(default_factory=list)
    twice: list[tuple[str, int]] = field(default_factory=list)
    strange: list[tuple[str, int]] = field(default_factory=list)  #: no instant of a plan
    early: list[tuple[str, int]] = field(default_factory=list)
    late_ms: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.missing or self.twice or self.strange or self.early)

    def __str__(self) -> str:
        return (
            f"{self.expected} instants expected, {self.arrived} messages; {len(self.missing)} instants missed, "
            f"{len(self.twice)} sent twice, {len(self.strange)} of no plan, {len(self.early)} early; "
            f"latest {self.late_ms} ms after its time"
        )


def expected(plans: Iterable[Plan], after_ms: int, upto_ms: int) -> set[tuple[str, int]]:
    return {(plan.name, at) for plan in plans for at in plan.between(after_ms, upto_ms)}


def judge_instants(
    plans: Iterable[Plan], arrivals: Iterable[Arrival], asked_ms: int, answered_ms: int, end_ms: int
) -> InstantVerdict:
    """Compare arrivals with the oracle.

    Args:
        asked_ms, answered_ms: before and after the request that created the schedules.
        end_ms: later instants may have arrived already.
    """
    plans, arrivals = list(plans), list(arrivals)
    latest_ms = max((one.instant_ms for one in arrivals), default=end_ms)
    sure, may = expected(plans, answered_ms, end_ms), expected(plans, asked_ms - 1, latest_ms)
    counts = Counter((one.name, one.instant_ms) for one in arrivals)
    verdict = InstantVerdict(len(sure), len(arrivals))
    verdict.missing = sorted(sure - counts.keys())
    verdict.strange = sorted(counts.keys() - may)
    verdict.twice = sorted(one for one, count in counts.items() if count > 1)
    verdict.early = sorted((one.name, one.instant_ms) for one in arrivals if one.arrived_ms < one.instant_ms - CLOCK_MS)
    verdict.late_ms = max((one.arrived_ms - one.instant_ms for one in arrivals), default=0)
    return verdict
