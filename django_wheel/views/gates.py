"""Pausing and resuming a queue, a task or everything: a page with a small form, and what is paused beside it.

It is a page of its own, since the wheel page loads itself anew and would lose what is being typed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.present import seen
from django_wheel.forms import Pause, Resume
from django_wheel.project import project_wheel
from django_wheel.views import record
from django_wheel.views.acting import failure, how
from django_wheel.views.lists import offered_names
from django_wheel.views.request import Asked


@dataclass(frozen=True, slots=True)
class Turn:
    verb: str
    label: str
    says: str
    form: type[Pause]
    do: Callable[[HttpRequest, Any, Any, dict[str, Any]], bool]  #: whether it had an effect; what it comes to is told


def _pause(request: HttpRequest, wheel: Any, form: Pause, asked: dict[str, Any]) -> bool:
    unheard = bool(form.which) and not wheel.forecast(**form.which)
    wheel.pause(**asked, **form.which)
    messages.success(request, f"Paused: {seen(form.what)}. It holds until it is resumed, also over a restart.")
    if unheard:
        messages.warning(request, f"Nothing waits for {seen(form.what)} at present: is that its name?")
    return True


def _resume(request: HttpRequest, wheel: Any, form: Resume, asked: dict[str, Any]) -> bool:
    minutes = form.cleaned_data["over"]
    was_paused: bool = wheel.resume(over=minutes * 60 if minutes else None, **asked, **form.which)
    if was_paused:
        pace = f"what has gathered leaves evenly in {minutes:,} min" if minutes else "what has gathered leaves now"
        messages.success(request, f"Resumed: {seen(form.what)}; {pace}.")
    else:
        messages.warning(request, f"Nothing was done: {seen(form.what)} was not paused.")
    return was_paused


TURNS = {
    "pause": Turn(
        "pause",
        "Pause",
        "Nothing leaves for it until it is resumed. What is due meanwhile waits in order, and can be cancelled.",
        Pause,
        _pause,
    ),
    "resume": Turn("resume", "Resume", "Undoes a pause of the same queue or task, or of everything.", Resume, _resume),
}


def turn_of(request: HttpRequest) -> Turn:
    given = request.POST if request.method == "POST" else request.GET
    return TURNS.get(given.get("verb", ""), TURNS["pause"])


def form_of(request: HttpRequest, turn: Turn) -> Pause:
    """Filled in with what was sent; before that, with what a link names."""
    return turn.form(request.POST) if request.method == "POST" else turn.form(initial=request.GET.dict())


def carry_out(request: HttpRequest, turn: Turn, form: Pause) -> None:
    """Pause or resume, and tell what became of it."""
    reason = form.cleaned_data["reason"]
    try:
        if turn.do(request, project_wheel(), form, how(request, reason)):
            record.gate(request, turn.label, form.what, reason)
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))


def shown(wheel: Wheel, asked: Asked) -> dict[str, Any]:
    names = offered_names(wheel)
    offered = dict.fromkeys(name for name, _ in (*names.queues, *names.tasks))
    return {"gates": wheel.gates(), "offered": list(offered), "turns": TURNS, "now_ms": now_ms()}
