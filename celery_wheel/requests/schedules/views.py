"""Schedules and their past as users read them: datetimes in UTC, and the arguments with which ``create`` was called.

::

    store: Schedule, ScheduleDetail ──► RecurringSchedule, ScheduleHistory(PastRun, PastSkip, PastRevision)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.definition import read_definition
from celery_wheel.store.schedule_model import Revision, Schedule, ScheduleDetail, ScheduleRun, Skip, schedule_before
from celery_wheel.values import json_object
from celery_wheel.values.text import END_OF_TIME_MS

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATIONS = {"catch_up_ms": "catch_up_window", "max_runtime_ms": "max_runtime", "jitter_ms": "jitter"}
_POLICIES = ("catch_up", "overlap", "jitter_by")


@dataclass(frozen=True, slots=True, repr=False)
class RecurringSchedule:
    """A recurring schedule, as ``get``, ``list`` and ``history`` return it."""

    name: str
    recurrence: Recurrence | None  #: None: this version cannot read it; see ``note``
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]  #: of ``apply_async``; expires is in seconds
    policies: dict[str, Any]  #: other than the defaults, as arguments of ``create``
    source: str  #: "api", or the source that it follows: "beat", "django-celery-beat", "code"
    revision: int
    next_at: datetime | None  #: the next instant whose occurrence is not pending yet
    last_at: datetime | None  #: the last instant whose occurrence was made
    made: int  #: occurrences made so far
    paused: bool
    broken: bool  #: the schedule does not run, for the reason in ``note``
    note: str
    since: datetime | None  #: paused or broken: no instant after this one has run
    definition: str  #: JSON, as stored

    def __repr__(self) -> str:
        """Without arguments, as the repr of a task."""
        state = "broken" if self.broken else "paused" if self.paused else f"next {self.next_at or 'none'}"
        return f"<schedule {self.name!r} of {self.task}: {state}, source {self.source}>"


@dataclass(frozen=True, slots=True)
class PastRun:
    """An occurrence that was made: pending, or with the outcome of its message."""

    scheduled_for: datetime
    task_id: str
    state: str  #: as of a ``Detail``: pending, in doubt, dispatched, or the kind of its last outcome
    due_at: datetime
    dispatched_at: datetime | None
    ended_at: datetime | None  #: the end that its worker reported, where the overlap policy needs it
    requested: bool  #: by a trigger or a backfill
    reason: str  #: of its outcome


@dataclass(frozen=True, slots=True)
class PastSkip:
    """Consecutive instants that did not run, for one reason."""

    first: datetime
    last: datetime
    count: int
    reason: str  #: paused, overlapped, missed
    decided_at: datetime
    is_exact: bool = True  #: otherwise there are more instants than ``count``


@dataclass(frozen=True, slots=True)
class PastRevision:
    """A change of a schedule."""

    number: int
    what: str  #: created, changed, paused, resumed, deleted, imported, rolled back
    actor: str
    reason: str
    changed_at: datetime
    before: RecurringSchedule | None  #: None: it was created


@dataclass(frozen=True, slots=True)
class ScheduleHistory:
    """The latest of each first, sixty at most. ``schedule`` is None where it was deleted."""

    schedule: RecurringSchedule | None
    runs: list[PastRun]
    skips: list[PastSkip]
    revisions: list[PastRevision]


def schedule_view(schedule: Schedule) -> RecurringSchedule:
    document = json_object(schedule.definition)
    try:
        recurrence = read_definition(schedule.definition).recurrence
    except RecurrenceError:
        recurrence = None
    policies = {name: document[name] for name in _POLICIES if name in document}
    lengths = {to: _milliseconds(document[name]) for name, to in _DURATIONS.items() if _is_time(document.get(name))}
    return RecurringSchedule(
        schedule.name,
        recurrence,
        str(document.get("task", "")),
        _value(document, "args", list),
        _value(document, "kwargs", dict),
        _value(document, "options", dict),
        {**policies, **lengths},
        schedule.source,
        schedule.revision,
        _moment(schedule.next_ms),
        _moment(schedule.last_ms),
        schedule.made,
        schedule.paused,
        schedule.broken,
        schedule.note,
        _moment(schedule.since_ms),
        schedule.definition,
    )


def history_view(detail: ScheduleDetail) -> ScheduleHistory:
    return ScheduleHistory(
        None if detail.schedule is None else schedule_view(detail.schedule),
        [_run(one) for one in detail.runs],
        [_skip(one) for one in detail.skips],
        [_revision(one) for one in detail.revisions],
    )


def moment(at_ms: int) -> datetime:
    """Return an instant; one outside of time, which only SQL has written, is shown as the end that is nearer."""
    return _EPOCH + timedelta(milliseconds=min(max(at_ms, 0), END_OF_TIME_MS))


def _run(run: ScheduleRun) -> PastRun:
    return PastRun(
        moment(run.instant_ms),
        run.task_id,
        run.state,
        moment(run.due_ms),
        _moment(run.dispatched_ms),
        _moment(run.ended_ms),
        run.requested,
        run.reason,
    )


def _skip(skip: Skip) -> PastSkip:
    return PastSkip(
        moment(skip.from_ms), moment(skip.to_ms), abs(skip.count), skip.reason, moment(skip.at_ms), skip.count > 0
    )


def _revision(one: Revision) -> PastRevision:
    before = schedule_before(one)
    view = None if before is None else schedule_view(before)
    return PastRevision(one.number, one.what, one.actor, one.reason, moment(one.at_ms), view)


def _value(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    return value if isinstance(value, kind) else kind()


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= END_OF_TIME_MS


def _milliseconds(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else moment(at_ms)
