"""Acting on tasks: which they are and why, then a request to the holders, then what became of each.

::

    a list, or a task's page ── POST verb, rows ──► the page that asks ── POST the same, sure ──► app.wheel
                 ▲                                      nothing is done yet                           │
                 └──────────────────── redirect, with the verdicts as messages ───────────────────────┘

Rows come by their numbers, and are looked up anew each time: of what a browser sends nothing is taken for a task's id.
The wheel is asked for by its own connection, outside of any transaction of Django's, and answers or withdraws within
``TIMEOUT_S``. What cannot be done is told in a message, and the page from which it was asked for comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError, WheelUnavailable
from celery_wheel.present import many, seen
from celery_wheel.requests.verdicts import Verdict
from django_wheel.project import project_wheel
from django_wheel.views import record
from django_wheel.views.actions import ACTIONS, Action
from django_wheel.views.chosen import Chosen, Refused, chosen_of

#: Seconds to wait for the holders: a web server's worker waits along.
TIMEOUT_S = 5.0
#: Lines of the page that asks; and ids in a message.
SHOWN, NAMED = 20, 5

#: Renders a page with this title and these values.
Render = Callable[[str, dict[str, Any]], HttpResponse]


def act(request: HttpRequest, render: Render) -> HttpResponse:
    """Ask whether it is meant; or do it, where it is said to be."""
    action = ACTIONS.get(request.POST.get("verb", ""))
    if action is None:
        return HttpResponseBadRequest(f"verb must be one of {', '.join(ACTIONS)}", content_type="text/plain")
    back = _back(request, action)
    form = action.form(request.POST if "sure" in request.POST else None)  # without data it is never valid
    try:
        wheel = project_wheel()
        chosen = chosen_of(wheel, action, request.POST.getlist("row"))
        if not form.is_valid():
            return render(f"{action.label} {many(len(chosen.task_ids), 'task')}?", _asking(action, chosen, form, back))
        _carry_out(request, wheel, action, chosen, form.cleaned_data)
    except Refused as error:
        messages.warning(request, str(error))
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def _back(request: HttpRequest, action: Action) -> str:
    """Where it was asked for: an address of this site, or else the list of such tasks."""
    back = request.POST.get("back", "")
    if back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        return back
    return reverse(f"admin:django_wheel_{action.page}_changelist", current_app=_site(request))


def _site(request: HttpRequest) -> str | None:
    return None if request.resolver_match is None else request.resolver_match.namespace


def _asking(action: Action, chosen: Chosen, form: Any, back: str) -> dict[str, Any]:
    return {
        "action": action,
        "tasks": chosen.tasks,
        "lines": chosen.tasks[:SHOWN],
        "more": max(0, len(chosen.tasks) - SHOWN),
        "left_out": chosen.left_out,
        "form": form,
        "back": back,
    }


# -- doing it ------------------------------------------------------------------------------------------


def how(request: HttpRequest, reason: str) -> dict[str, Any]:
    """Who asks, why, and for how long."""
    user: Any = request.user
    return {"actor": user.get_username(), "reason": reason, "timeout": TIMEOUT_S}


def _carry_out(request: HttpRequest, wheel: Wheel, action: Action, chosen: Chosen, given: dict[str, Any]) -> None:
    # Not as part of a transaction of Django's, whatever wheel_transactional says: there would be no verdict to tell.
    asked = {**how(request, given["reason"]), "transactional": False}
    unavailable: WheelUnavailable | None = None
    try:
        verdicts = action.ask(wheel, chosen.task_ids, given, asked)
    except WheelUnavailable as error:
        verdicts, unavailable = error.verdicts, error
    _tell(request, action, verdicts)
    if chosen.left_out:
        messages.warning(request, f"{chosen.left_out[0].upper()}{chosen.left_out[1:]}.")
    if unavailable is not None:
        count = len(chosen.task_ids) - len(verdicts)
        messages.error(request, f"{many(count, 'task')} had no answer: {failure(unavailable)}")
    if verdicts:
        record.tasks(request, action, chosen.tasks, verdicts, given["reason"])


def _tell(request: HttpRequest, action: Action, verdicts: Mapping[str, Verdict]) -> None:
    """What is as it was wanted in a message each, and what is not in another, with the first few of their ids."""
    by_verdict = {said: [id_ for id_, one in verdicts.items() if one is said] for said in Verdict}
    for said, tell in ((Verdict.DONE, messages.success), (Verdict.ALREADY, messages.info)):
        if ids := by_verdict.pop(said):
            tell(request, f"{action.words(said, len(ids))}.")
    not_done = [f"{action.words(said, len(ids))} ({_names(ids)})" for said, ids in by_verdict.items() if ids]
    if not_done:
        messages.warning(request, f"{'; '.join(not_done)}.")


def _names(task_ids: list[str]) -> str:
    return ", ".join(seen(one, 40) for one in task_ids[:NAMED]) + (" …" if len(task_ids) > NAMED else "")


def failure(error: Exception) -> str:
    """Why the wheel could not be asked, and what to do; with what was added on the way."""
    text = "; ".join([str(error).removesuffix("."), *getattr(error, "__notes__", [])])
    if isinstance(error, WheelUnavailable):
        return f"{seen(text, 2_000)}."
    return f"The wheel could not be asked, or its answer is not known; look before you ask again. {seen(text, 2_000)}."
