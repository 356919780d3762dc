"""The actions on schedules: their texts, their forms, their requests, and the schedules that a browser selected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.errors import RecurrenceError
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.values.format import printable
from celery_wheel.values.text import text_rule
from django_wheel.formats import counted, instant, ngettext_lazy, number
from django_wheel.forms import BackfillForm, NoteForm, ReasonForm, RevisionForm, ScheduleReasonForm
from django_wheel.schedule_form import BulkChangeForm
from django_wheel.views.page import may_view_payload
from django_wheel.views.payload import error_text
from django_wheel.views.requests import Action, Ask, SelectedRows, SelectionError, log_names

#: Sources whose schedules are changed here; others follow their source.
EDITABLE = ("api",)
#: Schedules in one request: Django accepts no more than a thousand fields in a form.
MAX_SCHEDULES = 500
#: Names in a message; refusals that are told with their reasons.
NAMES, REFUSALS = 20, 10

Answers = Mapping[str, ScheduleAnswer]

SCHEDULES = ngettext_lazy("%(number)s schedule", "%(number)s schedules")
UNKNOWN = ngettext_lazy(
    "%(number)s schedule does not exist any more: %(names)s.", "%(number)s schedules do not exist any more: %(names)s."
)
_FOLLOWING = ngettext_lazy(
    "%(number)s selected schedule follows another source, and is changed there: %(names)s.",
    "%(number)s selected schedules follow another source, and are changed there: %(names)s.",
)
_RUN_NOW = ngettext_lazy("%(number)s schedule runs now: %(names)s.", "%(number)s schedules run now: %(names)s.")
_UNANSWERED = ngettext_lazy(
    "%(number)s schedule had no answer: %(error)s", "%(number)s schedules had no answer: %(error)s"
)
_TOO_LATE = ngettext_lazy(
    "%(number)s occurrence was dispatched before, or may have been: %(names)s.",
    "%(number)s occurrences were dispatched before, or may have been: %(names)s.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleAction(Action):
    page: str = "schedule"
    form: type[ReasonForm] = ScheduleReasonForm
    unanswered: Promise = _UNANSWERED
    already: Promise
    is_of_definition: bool = False  #: not for schedules that follow another source

    def select(self, wheel: Wheel, rows: Iterable[str]) -> SelectedRows:
        """Return the schedules by name, without those that follow another source. Raises SelectionError for none.

        A schedule that does not exist any more stays: its holder answers "unknown".
        """
        names = [name for name in dict.fromkeys(rows) if text_rule(name) is None]
        if not names:
            raise SelectionError(_("Nothing was done, because no schedule was selected. Select schedules first."))
        most = 1 if self is ROLLBACK else MAX_SCHEDULES
        if len(names) > most:
            text = _("Nothing was done, because at most %(most)s schedules can be selected at once, got %(number)s.")
            raise SelectionError(text % {"most": number(most), "number": number(len(names))})
        sources = _sources(wheel, names) if self.is_of_definition else {}
        following = [name for name in names if sources.get(name, EDITABLE[0]) not in EDITABLE]
        problems = counted(_FOLLOWING, len(following), names=listed(following)) if following else ""
        kept = [name for name in names if name not in set(following)]
        if not kept:
            raise SelectionError(_("Nothing was done. %(problems)s") % {"problems": problems})
        return SelectedRows(kept, kept, problems)

    def report(self, request: HttpRequest, results: Answers) -> None:
        report(request, results, self.done, self.already)

    def log(self, request: HttpRequest, results: Answers, reason: str, row: str = "") -> None:
        log_answers(request, self.label, results, reason)


def listed(names: Sequence[str]) -> str:
    return ", ".join(printable(name, 60) for name in names[:NAMES]) + (" …" if len(names) > NAMES else "")


def _sources(wheel: Wheel, names: Sequence[str]) -> dict[str, str]:
    return {one.name: one.source for _, one in wheel.store.schedules_named(names)}


def log_answers(request: HttpRequest, label: Promise, answers: Answers, reason: str) -> None:
    results = {name: answer.result for name, answer in answers.items()}
    log_names(request, "schedule", label, results, (SCHEDULES, _("schedules: %(names)s")), reason)


def report(request: HttpRequest, answers: Answers, done: Promise, already: Promise) -> None:
    """Add a message for each kind of result with its names, and one for each refusal with its reason."""
    may = may_view_payload(request)
    texts = (("done", messages.success, done), ("already", messages.info, already))
    for result, add, text in (*texts, ("unknown", messages.warning, UNKNOWN)):
        if named := [name for name, answer in answers.items() if answer.result == result]:
            add(request, counted(text, len(named), names=listed(named)))
    for name, answer in answers.items():
        if answer.result == "done" and answer.reason:
            messages.warning(request, f"{printable(name)}: {printable(error_text(answer.reason, may), 500)}")
    late = [moment for answer in answers.values() for moment in answer.too_late]
    if late:
        shown = [instant(round(moment.timestamp() * 1_000)) for moment in late[:NAMES]]
        messages.warning(request, counted(_TOO_LATE, len(late), names=", ".join(shown)))
    refused = [(name, answer.reason) for name, answer in answers.items() if answer.result == "refused"]
    for name, reason in refused[:REFUSALS]:
        values = {"name": printable(name), "reason": printable(error_text(reason, may), 500)}
        messages.error(request, _("Schedule %(name)s was not changed: %(reason)s.") % values)
    if others := [name for name, _reason in refused[REFUSALS:]]:
        sentence = _("Other schedules that were not changed: %(names)s.")
        messages.error(request, sentence % {"names": listed(others)})


def _change(do: str, *arguments: str) -> Ask:
    """Return the request ``do``, whose arguments are values of the form."""

    def ask(wheel: Any, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Any:
        return wheel.schedules.change(do, names, how=how, **{name: values[name] for name in arguments})

    return ask


def _rollback(wheel: Any, names: list[str], values: dict[str, Any], how: dict[str, Any]) -> Answers:
    (name,) = names
    try:
        return {name: wheel.schedules.rollback(name, values["revision"], **how)}
    except (LookupError, RecurrenceError) as error:  # there is no such revision; its definition is refused
        return {name: ScheduleAnswer("refused", str(error))}


PAUSE = ScheduleAction(
    "pause",
    _("Pause"),
    ngettext_lazy("Pause %(number)s schedule?", "Pause %(number)s schedules?"),
    _("A paused schedule makes no occurrences until it is resumed. Its instants meanwhile are skipped."),
    ngettext_lazy("%(number)s schedule is paused: %(names)s.", "%(number)s schedules are paused: %(names)s."),
    already=ngettext_lazy(
        "%(number)s schedule was paused before: %(names)s.", "%(number)s schedules were paused before: %(names)s."
    ),
    ask=_change("pause"),
    form=NoteForm,
)
RESUME = ScheduleAction(
    "resume",
    _("Resume"),
    ngettext_lazy("Resume %(number)s schedule?", "Resume %(number)s schedules?"),
    _("A paused or broken schedule runs again at its next instant after now."),
    ngettext_lazy("%(number)s schedule is resumed: %(names)s.", "%(number)s schedules are resumed: %(names)s."),
    already=ngettext_lazy(
        "%(number)s schedule was not paused: %(names)s.", "%(number)s schedules were not paused: %(names)s."
    ),
    ask=_change("resume"),
)
TRIGGER = ScheduleAction(
    "trigger",
    _("Run now"),
    ngettext_lazy("Run %(number)s schedule now?", "Run %(number)s schedules now?"),
    _("One occurrence is dispatched at once, beside those of the schedule's own instants."),
    _RUN_NOW,
    already=_RUN_NOW,
    ask=_change("trigger"),
)
CHANGE = ScheduleAction(
    "change",
    _("Change"),
    ngettext_lazy("Change %(number)s schedule?", "Change %(number)s schedules?"),
    _("A field that is empty leaves the schedules as they are. Each schedule that is changed has a new revision."),
    ngettext_lazy("%(number)s schedule is changed: %(names)s.", "%(number)s schedules are changed: %(names)s."),
    already=ngettext_lazy(
        "%(number)s schedule had these values already: %(names)s.",
        "%(number)s schedules had these values already: %(names)s.",
    ),
    ask=lambda wheel, names, values, how: wheel.schedules.update(names, **values["changes"], **how),
    form=BulkChangeForm,
    is_of_definition=True,
)
DELETE = ScheduleAction(
    "delete",
    _("Delete"),
    ngettext_lazy("Delete %(number)s schedule?", "Delete %(number)s schedules?"),
    _("The schedule ends, and its pending occurrences are withdrawn. Its revisions stay."),
    ngettext_lazy("%(number)s schedule is deleted: %(names)s.", "%(number)s schedules are deleted: %(names)s."),
    already=UNKNOWN,
    ask=_change("delete"),
    is_of_definition=True,
)
BACKFILL = ScheduleAction(
    "backfill",
    _("Backfill"),
    ngettext_lazy("Backfill %(number)s schedule?", "Backfill %(number)s schedules?"),
    _("The instants of the schedule in a past time run, also those that have run before, as the overlap policy says."),
    ngettext_lazy("%(number)s schedule is backfilled: %(names)s.", "%(number)s schedules are backfilled: %(names)s."),
    already=UNKNOWN,
    ask=_change("backfill", "from_ms", "upto_ms", "overlap"),
    form=BackfillForm,
)
ROLLBACK = ScheduleAction(
    "rollback",
    _("Roll back"),
    ngettext_lazy("Roll back %(number)s schedule?", "Roll back %(number)s schedules?"),
    _("The schedule gets the definition that it had at that revision. This is a new revision."),
    ngettext_lazy("%(number)s schedule is rolled back: %(names)s.", "%(number)s schedules are rolled back: %(names)s."),
    already=ngettext_lazy(
        "%(number)s schedule had that definition already: %(names)s.",
        "%(number)s schedules had that definition already: %(names)s.",
    ),
    ask=_rollback,
    form=RevisionForm,
    is_of_definition=True,
)

OF_SELECTION = (PAUSE, RESUME, TRIGGER, CHANGE, DELETE)
ACTIONS = {action.verb: action for action in (*OF_SELECTION, BACKFILL, ROLLBACK)}


def for_schedule(schedule: Schedule) -> tuple[ScheduleAction, ...]:
    """Return the actions on a schedule in its state. One that follows another source is deleted there."""
    resume = (RESUME,) if schedule.paused or schedule.broken else ()
    pause = () if schedule.paused else (PAUSE,)
    return (TRIGGER, BACKFILL, *resume, *pause, *((DELETE,) if schedule.source in EDITABLE else ()))
