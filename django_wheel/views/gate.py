"""Pausing and resuming a queue, a task, a group or everything: a form, and a list of the gates in force.

The form has a page of its own, because the wheel page reloads itself and would lose what the user types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.values.format import printable
from django_wheel.formats import counted, ngettext_lazy
from django_wheel.forms import PauseForm, ResumeForm
from django_wheel.project import project_wheel
from django_wheel.views.lists import filter_names
from django_wheel.views.page import PageAdmin
from django_wheel.views.query import PageQuery
from django_wheel.views.requests import address, attempt_form, log, request_options

_RESUMED_OVER = ngettext_lazy(
    "Resumed: %(name)s. The backlog is dispatched evenly over %(number)s minute.",
    "Resumed: %(name)s. The backlog is dispatched evenly over %(number)s minutes.",
)


@dataclass(frozen=True, slots=True)
class GateAction:
    verb: str
    label: Promise
    effect: Promise
    form: type[PauseForm]
    run: Callable[[HttpRequest, Any, Any, dict[str, Any]], bool]  #: adds messages; returns whether anything changed


def _pause(request: HttpRequest, wheel: Any, form: PauseForm, options: dict[str, Any]) -> bool:
    if "group" in form.which:
        unknown = bool(wheel.unknown_gate(**form.which))
    else:
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
    _("Resuming ends a pause of the same queue, task or group, or of everything."),
    ResumeForm,
    _resume,
)
GATE_ACTIONS = {action.verb: action for action in (PAUSE, RESUME)}


def gate_page(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the form, with the values of a link; or, when the user has sent it, pause or resume."""
    is_sent = request.method == "POST"
    action = GATE_ACTIONS.get((request.POST if is_sent else request.GET).get("verb", ""), PAUSE)
    form = action.form(request.POST) if is_sent else action.form(initial=request.GET.dict())

    def act() -> bool:
        reason = form.cleaned_data["reason"]
        if action.run(request, project_wheel(), form, request_options(request, reason)):
            title = f"{action.label}: {printable(form.label)}"
            log(request, "wheel", title, title, reason)
        return True

    if is_sent and form.is_valid() and attempt_form(form, act):
        return HttpResponseRedirect(address(request, "wheel_changelist"))
    more = {"title": action.label, "action": action, "form": form}
    return page.answer(request, "django_wheel/gate.html", gate_values, **more)


def gate_values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    names = filter_names(wheel)
    distinct = dict.fromkeys(name for name, _count in (*names.queues, *names.tasks))
    return {"gates": wheel.gates(), "names": list(distinct), "actions": GATE_ACTIONS, "now_ms": now_ms()}
