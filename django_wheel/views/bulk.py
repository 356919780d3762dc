"""An action on all tasks that match a filter: its count and confirmation, its page with the progress, and its end.

::

    list ── POST act/ verb, all, filter ──► count, confirmation ── POST the same, sure ──► session ─┐
                                                                                                    ▼
      ┌── GET bulk/: progress, results ◄── POST bulk/ step: requests for a second ◄── bulk.js, or the button *Continue*
      └── closed, or without an answer: the state stays in the session; *Continue* goes on, *Stop* ends the action

One action of a session runs at a time, and one of its pages carries a step out at a time. Another page may stop it
meanwhile. No holder waits for an action: between two requests of 500 tasks it does its
other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from django_wheel.formats import counted
from django_wheel.project import project_wheel
from django_wheel.views import admin_log
from django_wheel.views.actions import TaskAction
from django_wheel.views.bulk_action import BulkAction, Matching, begin
from django_wheel.views.selection import SelectionError
from django_wheel.views.task_requests import Render, failure, page_before, request_options, site_of

#: Seconds of one step: a browser that goes away has the state of a second ago.
STEP_S = 1.0
#: A step that is not over by then has died with its process.
BUSY_MS = 10_000
_SESSION = "wheel_bulk"

_QUESTIONS = {
    "cancel": ngettext_lazy("Cancel all %(number)s task?", "Cancel all %(number)s tasks?", "count"),
    "run_now": ngettext_lazy("Run all %(number)s task now?", "Run all %(number)s tasks now?", "count"),
    "reschedule": ngettext_lazy("Reschedule all %(number)s task?", "Reschedule all %(number)s tasks?", "count"),
    "requeue": ngettext_lazy("Requeue all %(number)s task?", "Requeue all %(number)s tasks?", "count"),
}


def handle(request: HttpRequest, action: TaskAction, render: Render) -> HttpResponse:
    """Count the tasks and ask for confirmation; or, when the user has confirmed, begin."""
    back, filter_ = page_before(request, action.page), request.POST.get("filter", "")
    form = action.form(request.POST if "sure" in request.POST else None)
    try:
        if (open_one := _state(request)) is not None and not open_one.is_over:
            text = _("Another action on all matching tasks is not over. Continue or stop it first.")
            raise _OpenActionError(text)
        wheel = project_wheel()
        matching = Matching.of(action, filter_)
        if form.is_valid():
            _keep(request, begin(wheel, action, filter_, form.cleaned_data))
            return HttpResponseRedirect(_address(request))
        count, is_exact = matching.count(wheel)
        if not count:
            raise SelectionError(_("Nothing was done, because no task matches the filter."))
        values = {"action": action, "count": count, "is_exact": is_exact, "facts": matching.facts, "filter": filter_}
        return render(counted(_QUESTIONS[action.verb], count), {**values, "form": form, "back": back})
    except _OpenActionError as error:
        messages.warning(request, str(error))
        return HttpResponseRedirect(_address(request))
    except SelectionError as error:
        messages.warning(request, str(error))
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def page(request: HttpRequest, render: Callable[[dict[str, Any]], HttpResponse]) -> HttpResponse:
    """Show the action of the session; or carry out its next step, or stop it."""
    state = _state(request)
    if state is None:
        messages.info(request, _("There is no action on all matching tasks."))
        return HttpResponseRedirect(reverse("admin:django_wheel_pending_changelist", current_app=site_of(request)))
    problem = ""
    if request.method == "POST" and not state.is_over:
        if "stop" in request.POST:
            state.is_over = state.was_stopped = True
            admin_log.record_bulk(request, state)
            _keep(request, state)
        elif state.busy_until_ms > now_ms():
            time.sleep(STEP_S)  # another page of the browser carries the step out
        elif request.POST.get("step") == str(state.steps):  # another page of the browser is not further on
            problem = _step_alone(request, state)
    values = {"bulk": state, "problem": problem}
    if request.headers.get("Accept") == "application/json":
        html = render_to_string("django_wheel/bulk_state.html", values, request)
        return JsonResponse({"html": html, "goes_on": not (state.is_over or problem), "step": state.steps})
    if request.method == "POST" and not problem:
        return HttpResponseRedirect(_address(request))
    return render(values)


def _step_alone(request: HttpRequest, state: BulkAction) -> str:
    """Carry out the next step, and keep its state, unless another page has stopped the action meanwhile."""
    state.busy_until_ms = now_ms() + BUSY_MS
    _keep(request, state)
    request.session.save()
    problem = _step(request, state)
    state.busy_until_ms = 0
    stored = type(request.session)(request.session.session_key).get(_SESSION)
    if stored is not None and stored["id"] != state.id:  # it was stopped, and another action has begun
        request.session[_SESSION] = stored
        return problem
    if stored is not None and stored["was_stopped"]:
        state.is_over = state.was_stopped = True
    elif state.is_over:
        admin_log.record_bulk(request, state)
    _keep(request, state)
    return problem


def _step(request: HttpRequest, state: BulkAction) -> str:
    """Carry out requests for a second; return the error that ended it, if any."""
    until_s = time.monotonic() + STEP_S
    options = request_options(request, state.reason)
    try:
        wheel: Wheel = project_wheel()
        while not state.is_over:
            state.step(wheel, options)
            if time.monotonic() >= until_s:
                break
    except (WheelError, ImproperlyConfigured, SelectionError) as error:
        return failure(error)
    return ""


class _OpenActionError(Exception):
    """An action of this session is not over."""


def _state(request: HttpRequest) -> BulkAction | None:
    kept = request.session.get(_SESSION)
    try:
        return None if kept is None else BulkAction(**kept)
    except TypeError:  # another version wrote it
        return None


def _keep(request: HttpRequest, state: BulkAction) -> None:
    request.session[_SESSION] = asdict(state)


def _address(request: HttpRequest) -> str:
    return reverse("admin:django_wheel_pending_bulk", current_app=site_of(request))
