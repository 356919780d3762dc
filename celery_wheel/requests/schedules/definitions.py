"""Schedules as users write and read them: the arguments of ``create``, datetimes, durations, Celery's own schedules.

A *patch* has the values that are given; None sets a default. An interval counts from its ``start``, or else from 1970:
every 5 minutes is at :00, :05, :10 wherever it is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from celery_wheel import recurring
from celery_wheel.errors import ArgumentError, RecurrenceError
from celery_wheel.recurring.checks import check_duration
from celery_wheel.recurring.definition import BASE, dumped, merged, read_definition, to_text
from celery_wheel.recurring.local import check_zone, zone_name
from celery_wheel.requests.arguments import duration_ms, instant_ms
from celery_wheel.store.schedule_model import Revision, Schedule, ScheduleDetail, ScheduleRun, schedule_before
from celery_wheel.values import json_object
from celery_wheel.values.instants import utc
from celery_wheel.values.text import END_OF_TIME_MS

if TYPE_CHECKING:
    from celery_wheel.recurring import Recurrence


Duration = timedelta | float


class RecurrenceFields(TypedDict, total=False):
    """The zone and the limits of a recurrence; see ``celery_wheel.recurring.Recurrence``."""

    zone: str | tzinfo | None  #: an IANA name, or such a zone itself; by default that of the app
    gap: Literal["shift", "skip"] | None
    fold: Literal["first", "second", "both"] | None
    start: datetime | None
    until: datetime | None
    times: int | None
    without: recurring.Calendar | None


class DefinitionFields(RecurrenceFields, total=False):
    """Policies of a schedule, and options of its task's calls; None is the default. See ``recurring.definition``."""

    catch_up: Literal["latest", "all", "none"] | None
    catch_up_window: Duration | None  #: with "all": the time back from now in which missed instants run
    overlap: Literal["allow", "skip", "queue_one", "cancel_running"] | None
    max_runtime: Duration | None
    jitter: Duration | None
    jitter_by: Literal["run", "name"] | None
    queue: str | None
    routing_key: str | None
    exchange: str | None
    exchange_type: str | None
    priority: int | None
    expires: Duration | None  #: from the instant on
    headers: Mapping[str, Any] | None
    serializer: str | None
    compression: str | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool | None
    delivery_mode: int | None
    shadow: str | None
    reply_to: str | None
    link: Any
    link_error: Any
    wheel: Mapping[str, Any] | None


class DefinitionChanges(DefinitionFields, total=False):
    """All values of a definition."""

    recurrence: Any
    task: Any
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None


Read = Callable[[str, Any], Any]


def _same(name: str, value: Any) -> Any:
    return value


def _zone(name: str, value: Any) -> Any:
    return check_zone(name, value) if isinstance(value, tzinfo) else value


def _calendar(name: str, value: Any) -> Any:
    return recurring.to_json(value) if isinstance(value, recurring.Calendar) else value


#: Argument → the name of its value in the JSON, and the reader of the argument.
_RECURRENCE: dict[str, tuple[str, Read]] = {
    "zone": ("zone", _zone),
    **{name: (name, _same) for name in ("gap", "fold", "times")},
    "start": ("start_ms", instant_ms),
    "until": ("until_ms", instant_ms),
    "without": ("without", _calendar),
}
_POLICIES: dict[str, tuple[str, Read]] = {
    **{name: (name, _same) for name in ("catch_up", "overlap", "jitter_by")},
    "catch_up_window": ("catch_up_ms", duration_ms),
    "max_runtime": ("max_runtime_ms", duration_ms),
    "jitter": ("jitter_ms", duration_ms),
}
#: Value in the JSON → the argument that users give.
_ARGUMENTS = {field: name for name, (field, _) in {**_RECURRENCE, **_POLICIES}.items()} | {"spec": "recurrence"}
_NO_OPTIONS = frozenset(("recurrence", "task", "args", "kwargs", *_POLICIES, *_RECURRENCE))
#: A default is not written, so that equal definitions have equal texts.
_DEFAULTS = {"zone": "UTC", "gap": "shift", "fold": "first", "catch_up": "latest", "overlap": "allow", "jitter_ms": 0}


def definition_of(app: Any, values: Mapping[str, Any], *, checked: bool = True) -> dict[str, Any]:
    """Return the JSON of a new definition. Raises RecurrenceError, ArgumentError or TypeError.

    ``checked=False`` leaves checks that need the whole definition to the holder.
    """
    patch = patch_of(app, values)
    if patch.get("recurrence", {}).get("spec") is None:
        raise TypeError("a schedule must have a recurrence, got None")
    if values.get("zone") is None and "zone" not in patch["recurrence"]:
        patch["recurrence"]["zone"] = _zone_of(app)
    definition = merged({"recurrence": {}}, patch)
    try:
        (to_text if checked else dumped)(definition)
    except RecurrenceError as error:
        raise RecurrenceError(in_arguments(str(error))) from error
    return definition


def in_arguments(refusal: str) -> str:
    """Return the refusal of a definition with the argument's name in place of the path of the value in the JSON."""
    bare = refusal.removeprefix("recurrence: ").removeprefix("options.")
    field = bare[: len(bare) - len(bare.lstrip(f"{ascii_lowercase}_"))]
    return _ARGUMENTS.get(field, field) + bare.removeprefix(field)


def recurrence_of(app: Any, values: Mapping[str, Any]) -> recurring.Recurrence:
    """Return the recurrence that a schedule with these values would have."""
    return read_definition(dumped(definition_of(app, {**values, "task": "preview"}))).recurrence


def patch_of(app: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are given as JSON: of a whole definition, or of an update."""
    patch = _values(values, _POLICIES)
    start_ms = instant_ms("start", values["start"]) if values.get("start") else 0
    recurrence = _recurrence(app, values["recurrence"], start_ms) if values.get("recurrence") is not None else {}
    recurrence |= _values(values, _RECURRENCE)
    if recurrence:
        patch["recurrence"] = {name: _unless_default(name, value) for name, value in recurrence.items()}
    options = {name: value for name, value in values.items() if name not in _NO_OPTIONS}
    if options.get("expires") is not None:
        options["expires"] = duration_ms("expires", options["expires"]) / 1_000
    if options:
        patch["options"] = options
    if "task" in values:
        patch["task"] = getattr(values["task"], "name", values["task"])
    patch |= {name: _argument(name, values[name] or None) for name in ("args", "kwargs") if name in values}
    return patch


def _values(values: Mapping[str, Any], readers: Mapping[str, tuple[str, Read]]) -> dict[str, Any]:
    found = {}
    for name, (field, read) in readers.items():
        if name in values:
            value = values[name]
            found[field] = _unless_default(field, None if value is None else read(name, value))
    return found


def _unless_default(name: str, value: Any) -> Any:
    return None if name in _DEFAULTS and value == _DEFAULTS[name] else value


def _recurrence(app: Any, value: Any, start_ms: int) -> dict[str, Any]:
    """Return the values of a recurrence: all of them for a Recurrence, else those of the spec and its zone."""
    if isinstance(value, Mapping):
        value = recurring.from_json(value)
    if isinstance(value, recurring.Recurrence):
        every: dict[str, Any] = {field.name: None for field in fields(value) if field.init}
        return {**every, "zone": "UTC", **recurring.to_json(value)}
    if isinstance(value, timedelta | int | float) and not isinstance(value, bool):
        every_ms = check_duration("recurrence", duration_ms("recurrence", value), 1, END_OF_TIME_MS)
        value = recurring.Interval(every_ms, start_ms)
    if isinstance(value, str):
        value = recurring.Crontab.from_string(value)
    if isinstance(value, recurring.Spec):
        return {"kind": "recurrence", "spec": _spec(value)}
    return _of_celery(app, value, start_ms)


def _of_celery(app: Any, value: Any, start_ms: int) -> dict[str, Any]:
    from celery.schedules import BaseSchedule, maybe_schedule  # not needed for specs

    if not isinstance(value, BaseSchedule):
        raise TypeError(
            "recurrence must be a Recurrence, a spec like Crontab(0, 9), a text like '0 9 * * *', a schedule of "
            f"Celery, a timedelta or seconds, got {value!r:.60}"
        )
    found = recurring.from_celery(maybe_schedule(value, app=app), start_ms)
    if found is None:
        raise ArgumentError(
            f"recurrence must be a schedule whose instants can be computed, got {value!r:.100}, which decides by "
            "itself when it is due; put it into beat_schedule instead"
        )
    return {"zone": "UTC", **recurring.to_json(found)}


def _zone_of(app: Any) -> str | None:
    zone = zone_name(app.timezone)
    if zone is None:
        raise ArgumentError(f"zone must be given, since the app's time zone has no name, got {app.timezone!r:.60}")
    return None if zone == "UTC" else zone


def _argument(name: str, value: Any) -> Any:
    """Return arguments of a task; ``to_text`` refuses values that JSON does not have."""
    if value is None:
        return None
    if isinstance(value, Mapping) != (name == "kwargs") or isinstance(value, str | bytes):
        kind = "an object like {'day': 1}" if name == "kwargs" else "a list like [1]"
        raise ArgumentError(f"{name} must be {kind}, got {value!r:.100}")
    if not isinstance(value, Iterable):
        raise ArgumentError(f"{name} must be a list like [1], got {value!r:.100}")
    return dict(value) if name == "kwargs" else list(value)


@lru_cache(10_000)
def _spec(value: recurring.Spec) -> dict[str, Any]:
    """Return the JSON of a spec, which many schedules may share: do not change it."""
    return recurring.to_json(value)


# -- as users read them -------------------------------------------------------------------------------


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
    state: str  #: active, paused, broken, failing, ended (without a further instant), or run by Beat

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
    replaced: int = 0  #: the last runs, in a row, that the next one has cancelled (overlap "cancel_running")


def schedule_view(schedule: Schedule) -> RecurringSchedule:
    document = json_object(schedule.definition)
    try:
        recurrence = read_definition(schedule.definition).recurrence
    except RecurrenceError:
        recurrence = None
    return RecurringSchedule(
        schedule.name,
        recurrence,
        str(document.get("task", "")),
        _json_value(document, "args", list),
        _json_value(document, "kwargs", dict),
        _json_value(document, "options", dict),
        dict(_policies(document)),
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
        state_of(schedule, is_of_base=BASE in document),
    )


def state_of(schedule: Schedule, *, is_of_base: bool) -> str:
    if is_of_base:
        return "run by Beat"
    if schedule.broken:
        return "broken"
    if schedule.paused:
        return "paused"
    if schedule.is_failing:
        return "failing"
    return "ended" if schedule.next_ms is None else "active"


def history_view(detail: ScheduleDetail) -> ScheduleHistory:
    return ScheduleHistory(
        None if detail.schedule is None else schedule_view(detail.schedule),
        [_run(one) for one in detail.runs],
        [
            PastSkip(
                moment(one.from_ms), moment(one.to_ms), abs(one.count), one.reason, moment(one.at_ms), one.count > 0
            )
            for one in detail.skips
        ],
        [_revision(one) for one in detail.revisions],
        detail.replaced,
    )


def moment(at_ms: int) -> datetime:
    """Return an instant; one outside of time, which only SQL has written, is shown as the end that is nearer."""
    return utc(min(max(at_ms, 0), END_OF_TIME_MS))


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


def _revision(one: Revision) -> PastRevision:
    before = schedule_before(one)
    view = None if before is None else schedule_view(before)
    return PastRevision(one.number, one.what, one.actor, one.reason, moment(one.at_ms), view)


def _json_value(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    return value if isinstance(value, kind) else kind()


def _policies(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the policies by the names of their arguments, without lengths of time that only SQL can have written."""
    for name, (field, read) in _POLICIES.items():
        value = document.get(field)
        if read is _same and field in document:
            yield name, value
        elif read is duration_ms and type(value) is int and 0 <= value <= END_OF_TIME_MS:
            yield name, timedelta(milliseconds=value)


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else moment(at_ms)
