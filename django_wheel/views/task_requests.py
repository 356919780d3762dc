"""Requests on selected tasks: a page that asks for confirmation, a request to the holders, and the results.

::

    a list, or a task's page ── POST verb, rows ──► confirmation ── POST the same, sure ──► app.wheel
                 ▲                                  (changes nothing)                           │
                 └──────────────────── redirect, with the results as messages ──────────────────┘

A request runs outside of any Django transaction, because its answer needs a commit. The holders answer within
``TIMEOUT_S`` or the request is withdrawn. A failure is a message on the page that the user came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from celery_wheel.control import Wheel
from celery_wheel.errors import RequestInDoubt, WheelError, WheelUnavailable
from celery_wheel.requests.results import CommandResult
from django_wheel.formats import counted, printable
from django_wheel.project import masked_text, project_wheel
from django_wheel.views import admin_log
from django_wheel.views.actions import TaskAction
from django_wheel.views.selection import SelectionError, TaskSelection, selection_of

#: Seconds to wait for the holders; a process of the web server waits as long.
TIMEOUT_S = 5.0
#: Rows on the confirmation page; and task ids in a message.
ROWS, IDS = 20, 5
#: Characters of an error in a message.
ERROR_CUT = 2_000

_UNANSWERED = ngettext_lazy(
    "%(number)s task had no answer: %(error)s", "%(number)s tasks had no answer: %(error)s", "count"
)

#: Renders a page with this title and these values.
Render = Callable[[str, dict[str, Any]], HttpResponse]


def handle(request: HttpRequest, action: TaskAction, render: Render) -> HttpResponse:
    """Ask for confirmation; or, when the user has confirmed, carry the action out."""
    back = page_before(request, action.page)
    form = action.form(request.POST if "sure" in request.POST else None)  # without data it is never valid
    try:
        wheel = project_wheel()
        selection = selection_of(wheel, action, request.POST.getlist("row"))
        if not form.is_valid():
            title = action.question_for(len(selection.task_ids))
            return render(title, _confirmation(action, selection, form, back))
        _carry_out(request, wheel, action, selection, form.cleaned_data)
    except SelectionError as error:
        messages.warning(request, str(error))
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def page_before(request: HttpRequest, page: str) -> str:
    """Return the page that the user came from if it is one of this site, otherwise the list ``page``."""
    back = request.POST.get("back", "")
    if back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        return back
    return reverse(f"admin:django_wheel_{page}_changelist", current_app=site_of(request))


def site_of(request: HttpRequest) -> str | None:
    return None if request.resolver_match is None else request.resolver_match.namespace


def _confirmation(action: TaskAction, selection: TaskSelection, form: Any, back: str) -> dict[str, Any]:
    return {
        "action": action,
        "tasks": selection.tasks,
        "rows": selection.tasks[:ROWS],
        "more": max(0, len(selection.tasks) - ROWS),
        "left_out": selection.problems,
        "form": form,
        "back": back,
    }


# -- the request ---------------------------------------------------------------------------------------


def request_options(request: HttpRequest, reason: str) -> dict[str, Any]:
    """Return the actor, the reason and the timeout of a request to the holders."""
    user: Any = request.user
    return {"actor": user.get_username(), "reason": reason, "timeout": TIMEOUT_S, "origin": "admin"}


def _carry_out(
    request: HttpRequest, wheel: Wheel, action: TaskAction, selection: TaskSelection, values: dict[str, Any]
) -> None:
    # Never as part of a Django transaction, whatever wheel_transactional says: its commit would come after the answer.
    options = {**request_options(request, values["reason"]), "transactional": False}
    unavailable: WheelUnavailable | RequestInDoubt | None = None
    try:
        results = action.ask(wheel, selection.task_ids, values, options)
    except (WheelUnavailable, RequestInDoubt) as error:
        results, unavailable = error.results, error
    _report(request, action, results)
    if selection.problems:
        messages.warning(request, selection.problems)
    if unavailable is not None:
        count = len(selection.task_ids) - len(results)
        messages.error(request, counted(_UNANSWERED, count, error=failure(unavailable)))
    if results:
        admin_log.record_tasks(request, action, selection.tasks, results, values["reason"])


def _report(request: HttpRequest, action: TaskAction, results: Mapping[str, CommandResult]) -> None:
    """Add a message for each result that occurred, with its number of tasks."""
    levels = {CommandResult.DONE: messages.success, CommandResult.ALREADY: messages.info}
    for result in CommandResult:
        if ids := [task_id for task_id, one in results.items() if one is result]:
            levels.get(result, messages.warning)(request, action.result_text(result, len(ids), _names(ids)))


def _names(task_ids: list[str]) -> str:
    return ", ".join(printable(task_id, 40) for task_id in task_ids[:IDS]) + (" …" if len(task_ids) > IDS else "")


def failure(error: Exception) -> str:
    """Return a sentence about a request that failed: the consequence and the cause, with the error's notes."""
    notes = "; ".join([str(error).removesuffix("."), *getattr(error, "__notes__", [])])
    cause = printable(masked_text(notes), ERROR_CUT)
    if isinstance(error, WheelUnavailable):
        return f"{cause}."
    return _(
        "The request failed, or its result is not known; check the tasks before you repeat it. Cause: %(cause)s."
    ) % {"cause": cause}
