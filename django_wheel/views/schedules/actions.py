"""The actions on schedules: their texts, their forms, and the call of ``app.wheel.schedules`` that each makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from celery_wheel.control import Wheel
from celery_wheel.errors import RecurrenceError
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.schedule_model import Schedule
from django_wheel.forms import BackfillForm, NoteForm, ReasonForm, RevisionForm, ScheduleReasonForm
from django_wheel.schedule_bulk_form import BulkChangeForm

#: Sources whose schedules are changed here; others follow their source.
EDITABLE = ("api",)

Answers = Mapping[str, ScheduleAnswer]
#: Sends a request: the wheel, the names, the form's values, and the request's actor, reason and timeout.
Ask = Callable[[Wheel, list[str], dict[str, Any], dict[str, Any]], Answers]

UNKNOWN = ngettext_lazy(
    "%(number)s schedule does not exist any more: %(names)s.",
    "%(number)s schedules do not exist any more: %(names)s.",
    "count",
)


@dataclass(frozen=True, slots=True)
class ScheduleAction:
    verb: str
    label: Promise
    question: Promise  #: asks for confirmation
    effect: Promise  #: what happens to the schedules
    done: Promise
    already: Promise
    ask: Ask
    form: type[ReasonForm] = ScheduleReasonForm
    is_of_definition: bool = False  #: not for schedules that follow another source


def _change(do: str) -> Ask:
    def ask(wheel: Wheel, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Answers:
        found: Answers = wheel.schedules.change(do, names, how=how)
        return found

    return ask


def _backfill(wheel: Wheel, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Answers:
    options = {"from_ms": values["from_ms"], "upto_ms": values["upto_ms"], "overlap": values["overlap"] or None}
    found: Answers = wheel.schedules.change("backfill", names, how=how, **options)
    return found


def _rollback(wheel: Wheel, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Answers:
    (name,) = names
    try:
        return {name: wheel.schedules.rollback(name, values["revision"], **how)}
    except (LookupError, RecurrenceError) as error:  # there is no such revision; its definition is refused
        return {name: ScheduleAnswer("refused", str(error))}


def _update(wheel: Wheel, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Answers:
    found: Answers = wheel.schedules.update(names, **values["changes"], **how)
    return found


PAUSE = ScheduleAction(
    "pause",
    _("Pause"),
    ngettext_lazy("Pause %(number)s schedule?", "Pause %(number)s schedules?", "count"),
    _("A paused schedule makes no occurrences until it is resumed. Its instants meanwhile are skipped."),
    ngettext_lazy("%(number)s schedule is paused: %(names)s.", "%(number)s schedules are paused: %(names)s.", "count"),
    ngettext_lazy(
        "%(number)s schedule was paused before: %(names)s.",
        "%(number)s schedules were paused before: %(names)s.",
        "count",
    ),
    _change("pause"),
    NoteForm,
)
RESUME = ScheduleAction(
    "resume",
    _("Resume"),
    ngettext_lazy("Resume %(number)s schedule?", "Resume %(number)s schedules?", "count"),
    _("A paused or broken schedule runs again at its next instant after now."),
    ngettext_lazy(
        "%(number)s schedule is resumed: %(names)s.", "%(number)s schedules are resumed: %(names)s.", "count"
    ),
    ngettext_lazy(
        "%(number)s schedule was not paused: %(names)s.", "%(number)s schedules were not paused: %(names)s.", "count"
    ),
    _change("resume"),
)
TRIGGER = ScheduleAction(
    "trigger",
    _("Run now"),
    ngettext_lazy("Run %(number)s schedule now?", "Run %(number)s schedules now?", "count"),
    _("One occurrence is dispatched at once, beside those of the schedule's own instants."),
    ngettext_lazy("%(number)s schedule runs now: %(names)s.", "%(number)s schedules run now: %(names)s.", "count"),
    ngettext_lazy("%(number)s schedule runs now: %(names)s.", "%(number)s schedules run now: %(names)s.", "count"),
    _change("trigger"),
)
CHANGE = ScheduleAction(
    "change",
    _("Change"),
    ngettext_lazy("Change %(number)s schedule?", "Change %(number)s schedules?", "count"),
    _("A field that is empty leaves the schedules as they are. Each schedule that is changed has a new revision."),
    ngettext_lazy(
        "%(number)s schedule is changed: %(names)s.", "%(number)s schedules are changed: %(names)s.", "count"
    ),
    ngettext_lazy(
        "%(number)s schedule had these values already: %(names)s.",
        "%(number)s schedules had these values already: %(names)s.",
        "count",
    ),
    _update,
    BulkChangeForm,
    is_of_definition=True,
)
DELETE = ScheduleAction(
    "delete",
    _("Delete"),
    ngettext_lazy("Delete %(number)s schedule?", "Delete %(number)s schedules?", "count"),
    _("The schedule ends, and its pending occurrences are withdrawn. Its revisions stay."),
    ngettext_lazy(
        "%(number)s schedule is deleted: %(names)s.", "%(number)s schedules are deleted: %(names)s.", "count"
    ),
    UNKNOWN,
    _change("delete"),
    is_of_definition=True,
)
BACKFILL = ScheduleAction(
    "backfill",
    _("Backfill"),
    ngettext_lazy("Backfill %(number)s schedule?", "Backfill %(number)s schedules?", "count"),
    _("The instants of the schedule in a past time run, also those that have run before, as the overlap policy says."),
    ngettext_lazy(
        "%(number)s schedule is backfilled: %(names)s.", "%(number)s schedules are backfilled: %(names)s.", "count"
    ),
    UNKNOWN,
    _backfill,
    BackfillForm,
)
ROLLBACK = ScheduleAction(
    "rollback",
    _("Roll back"),
    ngettext_lazy("Roll back %(number)s schedule?", "Roll back %(number)s schedules?", "count"),
    _("The schedule gets the definition that it had at that revision. This is a new revision."),
    ngettext_lazy(
        "%(number)s schedule is rolled back: %(names)s.", "%(number)s schedules are rolled back: %(names)s.", "count"
    ),
    ngettext_lazy(
        "%(number)s schedule had that definition already: %(names)s.",
        "%(number)s schedules had that definition already: %(names)s.",
        "count",
    ),
    _rollback,
    RevisionForm,
    is_of_definition=True,
)

OF_SELECTION = (PAUSE, RESUME, TRIGGER, CHANGE, DELETE)
ACTIONS = {action.verb: action for action in (*OF_SELECTION, BACKFILL, ROLLBACK)}


def for_schedule(schedule: Schedule) -> tuple[ScheduleAction, ...]:
    """Return the actions on a schedule in its state. One that follows another source is deleted there."""
    resume = (RESUME,) if schedule.paused or schedule.broken else ()
    pause = () if schedule.paused else (PAUSE,)
    return (TRIGGER, BACKFILL, *resume, *pause, *((DELETE,) if schedule.source in EDITABLE else ()))
