"""The page of a schedule: its definition and policies, its next instants, its last runs and its revisions.

A mark of the chart is a run or a skip, the oldest first; its height is the logarithm of the lateness. A revision has
the schedule as the revision before left it; its values afterwards are those of the next revision, or of the schedule
itself.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, ClassVar

from django.http import Http404, HttpRequest, HttpResponse
from django.utils import dateformat
from django.utils.functional import Promise
from django.utils.timezone import get_current_timezone, get_current_timezone_name
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.recurring import Recurrence
from celery_wheel.recurring.definition import BASE, read_definition
from celery_wheel.recurring.local import zone_of
from celery_wheel.recurring.words import UpcomingInstant, in_words, upcoming
from celery_wheel.requests.schedules.definitions import state_of
from celery_wheel.store.schedule_model import (
    AHEAD_MS,
    EXCLUDED,
    GAP,
    MISSED,
    OVERLAPPED,
    PAUSED,
    REPLACED,
    Revision,
    Schedule,
    ScheduleDetail,
    ScheduleRun,
    Skip,
)
from celery_wheel.values import json_object
from celery_wheel.values.format import format_duration, printable
from django_wheel.formats import in_zone
from django_wheel.views.page import PageAdmin
from django_wheel.views.payload import Sight, error_text, shortened, sight_of
from django_wheel.views.query import PageQuery
from django_wheel.views.schedule_actions import EDITABLE, for_schedule

#: Occurrences of a preview.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    schedule: Schedule
    task: str
    words: str
    zone: str
    is_of_base: bool  #: an entry that Beat's own scheduler runs
    pending: int = 0

    @property
    def state(self) -> str:
        return state_of(self.schedule, is_of_base=self.is_of_base)


def line_of(schedule: Schedule, pending: int = 0) -> ScheduleLine:
    return ScheduleLine(schedule, *_described(schedule.definition, get_language()), pending)


@lru_cache(2_000)
def _described(text: str, language: str | None) -> tuple[str, str, str, bool]:
    """Return a definition's task, its recurrence in words, its zone, and whether Beat's own scheduler runs it.

    A value that cannot be read is an empty text.
    """
    try:
        document = json.loads(text)
        task, is_of_base = str(document["task"]), BASE in document
    except (ValueError, TypeError, KeyError, RecursionError):
        task, is_of_base = "", False
    try:
        recurrence = read_definition(text).recurrence
        return task, in_words(recurrence, gettext), recurrence.zone, is_of_base
    except WheelError:
        return task, "", "", is_of_base


LEFT_OUT: dict[str, Promise] = {
    "excluded": _("excluded"),
    "gap": _("skipped by the clocks"),
}


@dataclass(frozen=True, slots=True)
class UpcomingLine:
    instant: UpcomingInstant
    in_zone: str
    for_viewer: str

    @property
    def left_out(self) -> str:
        return str(LEFT_OUT[self.instant.left_out]) if self.instant.left_out else ""

    @property
    def shift(self) -> str:
        """The change of the clocks on its day: "clocks +1 h"; empty without one."""
        if not self.instant.shift_ms:
            return ""
        sign = "+" if self.instant.shift_ms > 0 else "-"
        return gettext("clocks %(shift)s") % {"shift": f"{sign}{format_duration(abs(self.instant.shift_ms))}"}


def upcoming_values(recurrence: Recurrence, at_ms: int, made: int = 0) -> dict[str, Any]:
    zone, own = zone_of(recurrence.zone) or UTC, get_current_timezone()
    lines = [
        UpcomingLine(one, zoned(one.at_ms, zone), zoned(one.at_ms, own))
        for one in upcoming(recurrence, at_ms, SHOWN, made)
    ]
    return {
        "words": in_words(recurrence, gettext),
        "upcoming": lines,
        "zone": recurrence.zone,
        "own_zone": get_current_timezone_name(),
        "is_own_zone": all(line.in_zone == line.for_viewer for line in lines),
    }


def zoned(at_ms: int, zone: tzinfo) -> str:
    """Return an instant with its weekday and the name of its offset: Mon 2026-11-23 09:00:00 CET."""
    local = in_zone(at_ms, zone)
    if local is None:
        return f"{at_ms} ms"
    millis = f".{at_ms % 1_000:03}" if at_ms % 1_000 else ""
    return f"{dateformat.format(local, 'D')} {local:%Y-%m-%d %H:%M:%S}{millis} {local:%Z}"


REVISION_LABELS: dict[str, Promise] = {
    "created": _("created"),
    "changed": _("changed"),
    "paused": _("paused"),
    "resumed": _("resumed"),
    "deleted": _("deleted"),
    "imported": _("imported"),
    "rolled back": _("rolled back"),
}


@dataclass(frozen=True, slots=True)
class ValueChange:
    """A value that a revision changed; ``before`` or ``after`` is empty where there was or is no value."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class RevisionLine:
    revision: Revision
    changes: list[ValueChange]
    can_roll_back: bool  #: its definition can be read, and is another than the schedule has

    @property
    def label(self) -> str | Promise:
        return REVISION_LABELS.get(self.revision.what, self.revision.what)


def revision_lines(detail: ScheduleDetail, sight: Sight) -> list[RevisionLine]:
    schedule, lines = detail.schedule, []
    befores = {(one.schedule, one.number): one.before for one in detail.revisions}
    for one in detail.revisions:
        if schedule is not None and (one.schedule, one.number) == (schedule.id, schedule.revision):
            after: str | None = schedule.definition
        else:
            after = _definition(befores.get((one.schedule, one.number + 1), ""))
        before = _definition(one.before)
        changed = [] if one.what == "deleted" or after is None else list(_changes(_values(before), _values(after)))
        changes = list(dict.fromkeys(_seen(each, sight) for each in changed))
        is_own = schedule is not None and one.schedule == schedule.id and schedule.source in EDITABLE
        is_other = schedule is not None and after != schedule.definition and bool(json_object(after or ""))
        lines.append(RevisionLine(one, changes, can_roll_back=is_own and is_other))
    return lines


def _seen(change: ValueChange, sight: Sight) -> ValueChange:
    """Return a change as the user sees it: within the payload, keys are values as well."""
    path = change.path if sight.may else shortened(change.path)
    return ValueChange(path, *(sight.changed_value(change.path, text) for text in (change.before, change.after)))


def _definition(schedule: str) -> str | None:
    """Return the definition in the JSON of a Schedule; None without one."""
    found = json_object(schedule).get("definition")
    return found if isinstance(found, str) else None


def _values(definition: str | None) -> dict[str, str]:
    if definition is None:
        return {}
    try:
        return dict(_paths(json.loads(definition), ""))
    except (ValueError, RecursionError):
        return {"": definition}


def _paths(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _paths(inner, f"{path}.{name}" if path else name)
    else:
        yield path, json.dumps(value, ensure_ascii=False)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ValueChange]:
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            yield ValueChange(path, before.get(path, ""), after.get(path, ""))


#: Marks of a chart.
MARKS = 60
#: A run that is dispatched later than this is late.
LATE_MS = 1_000

ON_TIME, LATE, PENDING, SKIPPED, MISSED_RUN, FAILED = "on-time", "late", "pending", "skipped", "missed", "failed"
MARK_LABELS: dict[str, Promise] = {
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

SLOT = 12.0
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
    def height(self) -> float:
        """The height of the mark's stem; a run that is late by a day or more has the tallest one."""
        if self.kind != LATE or self.late_ms is None:
            return _ON_TIME_HEIGHT if self.kind == ON_TIME else 0.0
        share = math.log(self.late_ms / LATE_MS) / math.log(_LATEST_MS / LATE_MS)
        return 10.0 + (_TALLEST - 10.0) * min(1.0, max(0.0, share))

    @property
    def label(self) -> Promise:
        return MARK_LABELS[self.kind]


@dataclass(frozen=True, slots=True)
class RunChart:
    marks: list[RunMark]  #: the oldest first
    counts: list[tuple[str, Promise, int]]  #: kind, label, marks of it
    width: ClassVar[float] = MARKS * SLOT
    height: ClassVar[float] = 44.0
    base: ClassVar[float] = 36.0  #: the height of the ground, from the top


def run_chart(detail: ScheduleDetail) -> RunChart:
    marks = [*map(_mark_of_run, detail.runs), *map(_mark_of_skip, detail.skips)]
    marks = sorted(marks, key=lambda mark: (mark.at_ms, mark.run.timer_id if mark.run else 0))[-MARKS:]
    free = MARKS - len(marks)  # the latest is at the right edge
    placed = [replace(mark, slot=free + slot) for slot, mark in enumerate(marks)]
    counts = Counter(mark.kind for mark in placed)
    return RunChart(placed, [(kind, label, counts[kind]) for kind, label in MARK_LABELS.items()])


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


CATCH_UP: dict[str, Promise] = {
    "latest": _("the latest missed instant runs"),
    "all": _("all missed instants run"),
    "none": _("missed instants do not run"),
}
OVERLAP: dict[str, Promise] = {
    "allow": _("runs may overlap"),
    "skip": _("an instant is skipped while an earlier run is not over"),
    "queue_one": _("one instant waits while an earlier run is not over"),
    "cancel_running": _("the earlier run is cancelled"),
}


def page(admin: PageAdmin, request: HttpRequest) -> HttpResponse:
    name = request.GET.get("name", "")

    def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        found = wheel.store.browse.schedule(name) if name and "\0" not in name else None
        if found is None:
            raise Http404(f"the store has no schedule {name!r:.100}")
        return _page_values(wheel, name, found, sight_of(request))

    title = gettext("Schedule %(name)s") % {"name": printable(name)}
    return admin.answer(request, "django_wheel/schedule.html", values, title=title)


def _page_values(wheel: Wheel, name: str, detail: ScheduleDetail, sight: Sight) -> dict[str, Any]:
    schedule = detail.schedule
    values: dict[str, Any] = {
        "name": name,
        "schedule": schedule,
        "chart": run_chart(detail),
        "revisions": revision_lines(detail, sight),
    }
    if schedule is None:
        return values
    pending = wheel.store.browse.pending_runs([schedule.id])
    line = line_of(schedule, pending.get(schedule.id, 0))
    return {
        **values,
        "line": line,
        "silent_until_ms": schedule.silent_until_ms(now_ms() + AHEAD_MS),
        "starved": detail.replaced if detail.replaced >= REPLACED else 0,
        "is_editable": schedule.source in EDITABLE and sight.may,
        "actions": () if line.is_of_base else for_schedule(schedule),
        **_of_definition(schedule, sight),
    }


def _of_definition(schedule: Schedule, sight: Sight) -> dict[str, Any]:
    document = sight.document(json_object(schedule.definition))
    parts = [
        (part, json.dumps(document[part], indent=2, ensure_ascii=False))
        for part in ("args", "kwargs", "options", "recurrence")
        if document.get(part)
    ]
    raw = "" if document or not sight.may else sight.mask.part(schedule.definition.encode()).decode()
    values: dict[str, Any] = {"parts": parts, "raw": raw}
    try:
        definition = read_definition(schedule.definition)
    except WheelError as error:
        return {**values, "problem": error_text(str(error), sight.may)}
    values["policies"] = {
        "catch_up": CATCH_UP.get(definition.catch_up, definition.catch_up),
        "catch_up_within": format_duration(definition.catch_up_ms) if definition.catch_up_ms else "",
        "overlap": OVERLAP.get(definition.overlap, definition.overlap),
        "max_runtime": format_duration(definition.max_runtime_ms),
        "jitter": format_duration(document["jitter_ms"]) if document.get("jitter_ms") else "",
    }
    try:
        values |= upcoming_values(definition.recurrence, now_ms(), schedule.made)
    except WheelError as error:  # a calendar that leaves nothing
        values["problem"] = error_text(str(error), sight.may)
    return {**values, "recurrence": definition.recurrence}
