"""The last runs of a schedule and the instants that were skipped, as marks of a chart and lines of the table behind it.

::

        ▲                       late        height: logarithm of the lateness
    ●   │   ●   □   ✕   ◆   ○              on time, skipped, missed, failed, pending
    ─── instants, the oldest first ───►
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from celery_wheel.store.schedule_model import (
    EXCLUDED,
    GAP,
    MISSED,
    OVERLAPPED,
    PAUSED,
    ScheduleDetail,
    ScheduleRun,
    Skip,
)

#: Marks of a chart.
MARKS = 60
#: A run that is dispatched later than this is late.
LATE_MS = 1_000

ON_TIME, LATE, PENDING, SKIPPED, MISSED_RUN, FAILED = "on-time", "late", "pending", "skipped", "missed", "failed"
LABELS: dict[str, Promise] = {
    ON_TIME: _("on time"),
    LATE: _("late"),
    PENDING: _("pending"),
    SKIPPED: _("skipped"),
    MISSED_RUN: _("missed"),
    FAILED: _("failed to run"),
}
SKIP_REASONS: dict[str, Promise] = {
    PAUSED: _("the schedule was paused"),
    OVERLAPPED: _("an earlier run was not over"),
    MISSED: _("no scheduler ran in time"),
    EXCLUDED: _("the calendar leaves it out"),
    GAP: _("the clocks skipped it"),
}

SLOT, HEIGHT, BASE = 12.0, 44.0, 36.0
_ON_TIME_HEIGHT, _TALLEST = 5.0, 28.0
_LATEST_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class RunMark:
    kind: str
    at_ms: int
    slot: int = 0
    upto_ms: int | None = None  #: of a skip of several instants: the last one
    count: int = 1  #: instants; negative: more than so many
    run: ScheduleRun | None = None
    late_ms: int | None = None
    reason: str | Promise = ""

    @property
    def least(self) -> int:
        return abs(self.count)

    @property
    def x(self) -> float:
        return (self.slot + 0.5) * SLOT

    @property
    def y(self) -> float:
        return BASE - self.height

    @property
    def height(self) -> float:
        """The height of the mark's stem; a run that is late by a day or more has the tallest one."""
        if self.kind != LATE or self.late_ms is None:
            return _ON_TIME_HEIGHT if self.kind == ON_TIME else 0.0
        share = math.log(self.late_ms / LATE_MS) / math.log(_LATEST_MS / LATE_MS)
        return 10.0 + (_TALLEST - 10.0) * min(1.0, max(0.0, share))

    @property
    def label(self) -> Promise:
        return LABELS[self.kind]


@dataclass(frozen=True, slots=True)
class RunChart:
    marks: list[RunMark]  #: the oldest first
    width: float
    height: float
    base: float
    counts: list[tuple[str, Promise, int]]  #: kind, label, marks of it

    @property
    def latest_first(self) -> list[RunMark]:
        return self.marks[::-1]


def run_chart(detail: ScheduleDetail) -> RunChart:
    marks = [*map(_mark_of_run, detail.runs), *map(_mark_of_skip, detail.skips)]
    marks = sorted(marks, key=lambda mark: (mark.at_ms, mark.run.timer_id if mark.run else 0))[-MARKS:]
    free = MARKS - len(marks)  # the latest is at the right edge
    placed = [_placed(mark, free + slot) for slot, mark in enumerate(marks)]
    counts = Counter(mark.kind for mark in placed)
    return RunChart(placed, MARKS * SLOT, HEIGHT, BASE, [(kind, LABELS[kind], counts[kind]) for kind in LABELS])


def _placed(mark: RunMark, slot: int) -> RunMark:
    return RunMark(mark.kind, mark.at_ms, slot, mark.upto_ms, mark.count, mark.run, mark.late_ms, mark.reason)


def _mark_of_run(run: ScheduleRun) -> RunMark:
    late_ms = None if run.dispatched_ms is None else max(0, run.dispatched_ms - run.due_ms)
    if run.state == "dispatched":
        kind = LATE if late_ms is not None and late_ms > LATE_MS else ON_TIME
    elif run.state in ("pending", "in doubt"):
        kind = PENDING
    else:
        kind = SKIPPED if run.state in ("cancelled", "moved") else FAILED
    return RunMark(kind, run.instant_ms, run=run, late_ms=late_ms, reason=run.reason)


def _mark_of_skip(skip: Skip) -> RunMark:
    kind = MISSED_RUN if skip.reason == MISSED else SKIPPED
    upto_ms = skip.to_ms if skip.to_ms > skip.from_ms else None
    return RunMark(
        kind, skip.from_ms, upto_ms=upto_ms, count=skip.count, reason=SKIP_REASONS.get(skip.reason, skip.reason)
    )
