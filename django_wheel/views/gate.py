"""Pausing and resuming a queue, a task, a group or everything: a form, and a list of the gates in force.

The form has a page of its own, because the wheel page reloads itself and would lose what the user types.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from celery_wheel.control import Wheel
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


def _pause(request: HttpRequest, wheel: Any, form: PauseForm, options: dict[str, Any]) -> bool:
    if "group" in form.which:
        unknown = bool(wheel.unknown_gate(**form.which))
    else:
        unknown = "everything" not in form.which and not wheel.forecast(**form.which)
    wheel.pause(**options, **form.which)
    text = gettext("Paused: %(name)s. The pause holds until it is resumed, also after a restart.")
    messages.success(request, text % {"name": form.gate})
    if unknown:
        text = gettext("No task is pending for %(name)s at present. Check the name.")
        messages.warning(request, text % {"name": form.gate})
    return True


def _resume(request: HttpRequest, wheel: Any, form: PauseForm, options: dict[str, Any]) -> bool:
    minutes = form.cleaned_data["over"]
    was_paused: bool = wheel.resume(over=minutes * 60 if minutes else None, **options, **form.which)
    if not was_paused:
        text = gettext("Nothing was done, because there was no pause of %(name)s.")
        messages.warning(request, text % {"name": form.gate})
    elif minutes:
        messages.success(request, counted(_RESUMED_OVER, minutes, name=form.gate))
    else:
        text = gettext("Resumed: %(name)s. The backlog is dispatched now.")
        messages.success(request, text % {"name": form.gate})
    return was_paused


#: Each form with its action, which adds messages and returns whether anything changed.
GATE_ACTIONS = {"pause": (PauseForm, _pause), "resume": (ResumeForm, _resume)}


def gate_page(page: PageAdmin, request: HttpRequest) -> HttpResponse:
    """Show the form, with the values of a link; or, when the user has sent it, pause or resume."""
    is_sent = request.method == "POST"
    verb = (request.POST if is_sent else request.GET).get("verb", "")
    form_of, run = GATE_ACTIONS.get(verb, GATE_ACTIONS["pause"])
    form = form_of(request.POST) if is_sent else form_of(initial=request.GET.dict())

    def act() -> bool:
        reason = form.cleaned_data["reason"]
        if run(request, project_wheel(), form, request_options(request, reason)):
            title = f"{form.title}: {printable(form.gate)}"
            log(request, "wheel", title, reason)
        return True

    if is_sent and form.is_valid() and attempt_form(form, act):
        return HttpResponseRedirect(address(request, "wheel_changelist"))
    return page.answer(request, "django_wheel/gate.html", gate_values, title=form.title, form=form)


def gate_values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    distinct = dict.fromkeys(name for names in filter_names(wheel).values() for name, _count in names)
    titles = {verb: form.title for verb, (form, _run) in GATE_ACTIONS.items()}
    return {"gates": wheel.gates(), "names": list(distinct), "titles": titles}
