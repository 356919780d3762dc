"""An action on schedules: the confirmation, the request to the holders, and its results.

::

    the list, or a schedule's page ── POST verb, names ──► confirmation ── POST the same, sure ──► app.wheel.schedules
                 ▲                                         (changes nothing)                           │
                 └──────────────────── redirect, with a message for each kind of result ───────────────┘
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext_lazy

from celery_wheel.control import Wheel
from celery_wheel.errors import RequestInDoubt, WheelError, WheelUnavailable
from django_wheel.formats import counted, instant, printable
from django_wheel.permissions import may_view_payload
from django_wheel.project import project_wheel
from django_wheel.views import admin_log
from django_wheel.views.payload import error_text
from django_wheel.views.schedules.actions import ACTIONS, UNKNOWN, Answers, ScheduleAction
from django_wheel.views.schedules.selection import NAMES, ScheduleSelection, listed, selection_of
from django_wheel.views.selection import SelectionError
from django_wheel.views.task_requests import ROWS, Render, failure, page_before, request_options

#: Refusals that are told with their reasons.
REFUSALS = 10

_UNANSWERED = ngettext_lazy(
    "%(number)s schedule had no answer: %(error)s", "%(number)s schedules had no answer: %(error)s", "count"
)
_TOO_LATE = ngettext_lazy(
    "%(number)s occurrence was dispatched before, or may have been: %(names)s.",
    "%(number)s occurrences were dispatched before, or may have been: %(names)s.",
    "count",
)


def handle(request: HttpRequest, render: Render) -> HttpResponse:
    """Ask for confirmation; or, when the user has confirmed, carry the action out."""
    action = ACTIONS.get(request.POST.get("verb", ""))
    if action is None:
        return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
    back = page_before(request, "schedule")
    form = action.form(request.POST) if "sure" in request.POST else action.form(initial=request.POST.dict())
    try:
        wheel = project_wheel()
        selection = selection_of(wheel, action, request.POST.getlist("row"))
        if not form.is_valid():  # without data it is never valid
            return render(counted(action.question, len(selection.names)), _confirmation(action, selection, form, back))
        _carry_out(request, wheel, action, selection, form.cleaned_data)
    except SelectionError as error:
        messages.warning(request, str(error))
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def _confirmation(action: ScheduleAction, selection: ScheduleSelection, form: Any, back: str) -> dict[str, Any]:
    names = selection.names
    values = {"action": action, "names": names, "rows": names[:ROWS], "more": max(0, len(names) - ROWS)}
    return {**values, "left_out": selection.problems, "form": form, "back": back}


def _carry_out(
    request: HttpRequest, wheel: Wheel, action: ScheduleAction, selection: ScheduleSelection, values: dict[str, Any]
) -> None:
    # Never as part of a Django transaction, whatever wheel_transactional says: its commit would come after the answer.
    how = {**request_options(request, values["reason"]), "transactional": False}
    unavailable: WheelUnavailable | RequestInDoubt | None = None
    try:
        answers = action.ask(wheel, selection.names, values, how)
    except (WheelUnavailable, RequestInDoubt) as error:
        answers, unavailable = error.results, error
    report(request, answers, action.done, action.already)
    if selection.problems:
        messages.warning(request, selection.problems)
    if unavailable is not None:
        count = len(selection.names) - len(answers)
        messages.error(request, counted(_UNANSWERED, count, error=failure(unavailable)))
    if answers:
        admin_log.record_schedules(request, action.label, answers, values["reason"])


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
        messages.error(request, gettext("Schedule %(name)s was not changed: %(reason)s.") % values)
    if others := [name for name, _reason in refused[REFUSALS:]]:
        sentence = gettext("Other schedules that were not changed: %(names)s.")
        messages.error(request, sentence % {"names": listed(others)})
