"""The actions on schedules: their texts and forms, the confirmation, the request to the holders, and its results.

::

    the list, or a schedule's page ── POST verb, names ──► confirmation ── POST the same, sure ──► app.wheel.schedules
                 ▲                                         (changes nothing)                           │
                 └──────────────────── redirect, with a message for each kind of result ───────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError, WheelUnavailable
from celery_wheel.requests.results import ScheduleAnswer
from celery_wheel.store.schedule_model import Schedule
from celery_wheel.values.text import text_rule
from django_wheel.formats import counted, instant, number, printable
from django_wheel.forms import BackfillForm, NoteForm, ReasonForm, RevisionForm, ScheduleReasonForm
from django_wheel.project import project_wheel
from django_wheel.views import admin_log
from django_wheel.views.task_requests import ROWS, Render, failure, page_before, request_options

#: Schedules in one request; Django accepts no more than a thousand fields in a form.
MAX_SCHEDULES = 500
#: Sources whose schedules are changed here; others follow their source.
EDITABLE = ("api",)
#: Names in a message; refusals with their reasons.
NAMES, REFUSALS = 20, 10

Answers = Mapping[str, ScheduleAnswer]
#: Sends a request: the wheel, the names, the form's values, and the request's actor, reason and timeout.
Ask = Callable[[Wheel, list[str], dict[str, Any], dict[str, Any]], Answers]

_UNKNOWN = ngettext_lazy(
    "%(number)s schedule does not exist any more: %(names)s.",
    "%(number)s schedules do not exist any more: %(names)s.",
    "count",
)
_UNANSWERED = ngettext_lazy(
    "%(number)s schedule had no answer: %(error)s", "%(number)s schedules had no answer: %(error)s", "count"
)
_TOO_LATE = ngettext_lazy(
    "%(number)s occurrence was dispatched before, or may have been: %(names)s.",
    "%(number)s occurrences were dispatched before, or may have been: %(names)s.",
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
    except LookupError as error:  # the revision; a refused definition raises another
        return {name: ScheduleAnswer("refused", str(error))}


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
DELETE = ScheduleAction(
    "delete",
    _("Delete"),
    ngettext_lazy("Delete %(number)s schedule?", "Delete %(number)s schedules?", "count"),
    _("The schedule ends, and its pending occurrences are withdrawn. Its revisions stay."),
    ngettext_lazy(
        "%(number)s schedule is deleted: %(names)s.", "%(number)s schedules are deleted: %(names)s.", "count"
    ),
    _UNKNOWN,
    _change("delete"),
)
BACKFILL = ScheduleAction(
    "backfill",
    _("Backfill"),
    ngettext_lazy("Backfill %(number)s schedule?", "Backfill %(number)s schedules?", "count"),
    _("The instants of the schedule in a past time run, whether they have run before or not, as the policy says."),
    ngettext_lazy(
        "%(number)s schedule is backfilled: %(names)s.", "%(number)s schedules are backfilled: %(names)s.", "count"
    ),
    _UNKNOWN,
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
)

OF_SELECTION = (PAUSE, RESUME, TRIGGER, DELETE)
ACTIONS = {action.verb: action for action in (*OF_SELECTION, BACKFILL, ROLLBACK)}


def for_schedule(schedule: Schedule) -> tuple[ScheduleAction, ...]:
    """Return the actions on a schedule in its state. One that follows another source is deleted there."""
    resume = (RESUME,) if schedule.paused or schedule.broken else ()
    pause = () if schedule.paused else (PAUSE,)
    return (TRIGGER, BACKFILL, *resume, *pause, *((DELETE,) if schedule.source in EDITABLE else ()))


def handle(request: HttpRequest, render: Render) -> HttpResponse:
    """Ask for confirmation; or, when the user has confirmed, carry the action out."""
    action = ACTIONS.get(request.POST.get("verb", ""))
    if action is None:
        return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
    back = page_before(request, "schedule")
    names = [name for name in dict.fromkeys(request.POST.getlist("row")) if text_rule(name) is None]
    if problem := _problem(action, names):
        messages.warning(request, problem)
        return HttpResponseRedirect(back)
    form = action.form(request.POST) if "sure" in request.POST else action.form(initial=request.POST.dict())
    if not form.is_valid():  # without data it is never valid
        values = {"action": action, "names": names, "rows": names[:ROWS], "more": max(0, len(names) - ROWS)}
        return render(counted(action.question, len(names)), {**values, "form": form, "back": back})
    try:
        _carry_out(request, project_wheel(), action, names, form.cleaned_data)
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def _problem(action: ScheduleAction, names: Sequence[str]) -> str:
    if not names:
        return gettext("Nothing was done, because no schedule was selected. Select schedules first.")
    most = 1 if action is ROLLBACK else MAX_SCHEDULES
    if len(names) > most:
        text = gettext("Nothing was done, because at most %(most)s schedules can be selected at once, got %(number)s.")
        return text % {"most": number(most), "number": number(len(names))}
    return ""


def _carry_out(
    request: HttpRequest, wheel: Wheel, action: ScheduleAction, names: list[str], values: dict[str, Any]
) -> None:
    # Never as part of a Django transaction, whatever wheel_transactional says: its commit would come after the answer.
    how = {**request_options(request, values["reason"]), "transactional": False}
    unavailable: WheelUnavailable | None = None
    try:
        answers = action.ask(wheel, names, values, how)
    except WheelUnavailable as error:
        answers, unavailable = error.results, error
    report(request, answers, action.done, action.already)
    if unavailable is not None:
        count = len(names) - len(answers)
        messages.error(request, counted(_UNANSWERED, count, error=failure(unavailable)))
    if answers:
        admin_log.record_schedules(request, action.label, answers, values["reason"])


def report(request: HttpRequest, answers: Answers, done: Promise, already: Promise) -> None:
    """Add a message for each kind of result with its names, and one for each refusal with its reason."""
    texts = (("done", messages.success, done), ("already", messages.info, already))
    for result, add, text in (*texts, ("unknown", messages.warning, _UNKNOWN)):
        if named := [name for name, answer in answers.items() if answer.result == result]:
            add(request, counted(text, len(named), names=listed(named)))
    for name, answer in answers.items():
        if answer.result == "done" and answer.reason:
            messages.warning(request, f"{printable(name)}: {printable(answer.reason, 500)}")
    late = [moment for answer in answers.values() for moment in answer.too_late]
    if late:
        shown = [instant(round(moment.timestamp() * 1_000)) for moment in late[:NAMES]]
        messages.warning(request, counted(_TOO_LATE, len(late), names=", ".join(shown)))
    refused = [(name, answer.reason) for name, answer in answers.items() if answer.result == "refused"]
    for name, reason in refused[:REFUSALS]:
        values = {"name": printable(name), "reason": printable(reason, 500)}
        messages.error(request, gettext("Schedule %(name)s was not changed: %(reason)s.") % values)
    if others := [name for name, _reason in refused[REFUSALS:]]:
        sentence = gettext("Other schedules that were not changed: %(names)s.")
        messages.error(request, sentence % {"names": listed(others)})


def listed(names: Sequence[str]) -> str:
    return ", ".join(printable(name, 60) for name in names[:NAMES]) + (" …" if len(names) > NAMES else "")
