"""Pausing and resuming a queue, a task or everything: a form, and a list of the gates in force.

The form has a page of its own, because the wheel page reloads itself and would lose what the user types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from django_wheel.formats import counted
from django_wheel.forms import PauseForm, ResumeForm
from django_wheel.project import project_wheel
from django_wheel.views import admin_log
from django_wheel.views.lists import filter_names
from django_wheel.views.query import PageQuery
from django_wheel.views.task_requests import failure, request_options

_RESUMED_OVER = ngettext_lazy(
    "Resumed: %(name)s. The backlog is dispatched evenly over %(number)s minute.",
    "Resumed: %(name)s. The backlog is dispatched evenly over %(number)s minutes.",
    "count",
)


@dataclass(frozen=True, slots=True)
class GateAction:
    verb: str
    label: Promise
    effect: Promise
    form: type[PauseForm]
    run: Callable[[HttpRequest, Any, Any, dict[str, Any]], bool]  #: adds messages; returns whether anything changed


def _pause(request: HttpRequest, wheel: Any, form: PauseForm, options: dict[str, Any]) -> bool:
    unknown = "everything" not in form.which and not wheel.forecast(**form.which)
    wheel.pause(**options, **form.which)
    text = gettext("Paused: %(name)s. The pause holds until it is resumed, also after a restart.")
    messages.success(request, text % {"name": form.label})
    if unknown:
        text = gettext("No task is pending for %(name)s at present. Check the name.")
        messages.warning(request, text % {"name": form.label})
    return True


def _resume(request: HttpRequest, wheel: Any, form: ResumeForm, options: dict[str, Any]) -> bool:
    minutes = form.cleaned_data["over"]
    was_paused: bool = wheel.resume(over=minutes * 60 if minutes else None, **options, **form.which)
    if not was_paused:
        text = gettext("Nothing was done, because there was no pause of %(name)s.")
        messages.warning(request, text % {"name": form.label})
    elif minutes:
        messages.success(request, counted(_RESUMED_OVER, minutes, name=form.label))
    else:
        text = gettext("Resumed: %(name)s. The backlog is dispatched now.")
        messages.success(request, text % {"name": form.label})
    return was_paused


PAUSE = GateAction(
    "pause",
    _("Pause"),
    _(
        "The scheduler dispatches none of these tasks until they are resumed. Tasks that fall due wait in order and "
        "can still be cancelled."
    ),
    PauseForm,
    _pause,
)
RESUME = GateAction(
    "resume",
    _("Resume"),
    _("Resuming ends a pause of the same queue or task, or of everything."),
    ResumeForm,
    _resume,
)
GATE_ACTIONS = {action.verb: action for action in (PAUSE, RESUME)}


def gate_action(request: HttpRequest) -> GateAction:
    values = request.POST if request.method == "POST" else request.GET
    return GATE_ACTIONS.get(values.get("verb", ""), PAUSE)


def gate_form(request: HttpRequest, action: GateAction) -> PauseForm:
    """Return the form with the values that were sent, or before that with those of a link."""
    return action.form(request.POST) if request.method == "POST" else action.form(initial=request.GET.dict())


def carry_out(request: HttpRequest, action: GateAction, form: PauseForm) -> None:
    """Pause or resume, and add a message about the result."""
    reason = form.cleaned_data["reason"]
    try:
        if action.run(request, project_wheel(), form, request_options(request, reason)):
            admin_log.record_gate(request, action.label, form.label, reason)
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))


def gate_values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    """Return the values of the page's template."""
    names = filter_names(wheel)
    distinct = dict.fromkeys(name for name, _count in (*names.queues, *names.tasks))
    return {"gates": wheel.gates(), "names": list(distinct), "actions": GATE_ACTIONS, "now_ms": now_ms()}
