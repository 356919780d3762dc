"""Requests to the holders: the confirmation, the request, its results as messages, and the entry in the admin's log.

A list or a page posts verb and rows, and gets a confirmation, which changes nothing; the same with ``sure`` sends the
request, and redirects. A request runs outside of any Django transaction, because its answer needs a commit. The holders
answer within ``TIMEOUT_S`` or the request is withdrawn. A failure is a message on the page that the user came from; on
a form that a user filled in, it is an error of the form. The store keeps the actor and the reason; if the admin's log
cannot be written, the action stays done and a message says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.apps import apps
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel
from celery_wheel.errors import RequestInDoubt, WheelError, WheelUnavailable
from celery_wheel.values.format import printable
from django_wheel.formats import counted, results_text
from django_wheel.forms import ReasonForm
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.page import ERROR_CUT

T = TypeVar("T")

#: Seconds to wait for the holders; a process of the web server waits as long.
TIMEOUT_S = 5.0
#: Rows on the confirmation page; names in an entry of the log; characters of its title, as Django's table has them.
ROWS, LOGGED, TITLE_CUT = 20, 20, 200

#: Renders a page with this title and these values.
Render = Callable[[str, dict[str, Any]], HttpResponse]
#: Sends a request: the wheel, the names, the form's values, and the request's actor, reason and timeout.
Ask = Callable[[Any, list[str], dict[str, Any], dict[str, Any]], Mapping[str, Any]]


class SelectionError(Exception):
    """The selection has nothing on which the action is possible; the text tells the user why."""


@dataclass(frozen=True, slots=True)
class SelectedRows:
    names: list[str]  #: ids of tasks, or names of schedules
    rows: list[Any]  #: the selected rows, as the page of the confirmation shows and repeats them
    problems: str  #: sentences about the rows that are left out; empty if there are none
    row: str = ""  #: the number of the only row, for a link in the log


@dataclass(frozen=True, slots=True)
class Action(ABC):
    verb: str
    label: Promise
    question: Promise  #: asks for confirmation
    effect: Promise  #: what happens to the rows
    done: Promise
    ask: Ask

    page: str  #: the page that lists such rows
    form: type[ReasonForm]
    unanswered: Promise  #: the sentence about the rows that no holder answered for

    @abstractmethod
    def select(self, wheel: Wheel, rows: Iterable[str]) -> SelectedRows:
        """Return the rows that a browser sent, as far as they exist. Raises SelectionError where none is left."""

    @abstractmethod
    def report(self, request: HttpRequest, results: Mapping[str, Any]) -> None:
        """Add a message for each result that occurred, with its number of rows."""

    @abstractmethod
    def log(self, request: HttpRequest, results: Mapping[str, Any], reason: str, row: str) -> None: ...


def handle(request: HttpRequest, action: Action, render: Render) -> HttpResponse:
    """Ask for confirmation; or, when the user has confirmed, carry the action out."""
    back = page_before(request, action.page)
    form = action.form(request.POST) if "sure" in request.POST else action.form(initial=request.POST.dict())

    def act() -> HttpResponse | None:
        wheel = project_wheel()
        selection = action.select(wheel, request.POST.getlist("row"))
        if form.is_valid():  # without data it never is
            _carry_out(request, wheel, action, selection, form.cleaned_data)
            return None
        rows, values = selection.rows, {"action": action, "form": form, "back": back}
        values |= {"selected": rows, "rows": rows[:ROWS], "more": max(0, len(rows) - ROWS)}
        values["left_out"] = selection.problems
        return render(counted(action.question, len(selection.names)), values)

    return attempt(request, back, act)


def attempt(request: HttpRequest, back: str, act: Callable[[], HttpResponse | None]) -> HttpResponse:
    """Return the page of ``act``; without one, or after an error that a message tells, the page before."""
    try:
        return act() or HttpResponseRedirect(back)
    except SelectionError as error:
        messages.warning(request, str(error))
    except (WheelError, ImproperlyConfigured) as error:
        messages.error(request, failure(error))
    return HttpResponseRedirect(back)


def attempt_form(form: BaseForm, act: Callable[[], T]) -> T | None:
    """Return what ``act`` returns; None after an error, which stands on the form with all that the user typed."""
    try:
        return act()
    except (WheelError, ImproperlyConfigured) as error:
        form.add_error(None, failure(error))
        return None


def page_before(request: HttpRequest, page: str) -> str:
    """Return the page that the user came from if it is one of this site, otherwise the list ``page``."""
    back = request.POST.get("back", "")
    if back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None):
        return back
    return address(request, f"{page}_changelist")


def address(request: HttpRequest, name: str, **arguments: str) -> str:
    """Return the address of a page of the site that the request is for."""
    site = None if request.resolver_match is None else request.resolver_match.namespace
    return reverse(f"admin:django_wheel_{name}", kwargs=arguments, current_app=site)


# -- the request ---------------------------------------------------------------------------------------


def request_options(request: HttpRequest, reason: str) -> dict[str, Any]:
    """Return the actor, the reason and the timeout of a request to the holders."""
    user: Any = request.user
    return {"actor": user.get_username(), "reason": reason, "timeout": TIMEOUT_S, "origin": "admin"}


def _carry_out(
    request: HttpRequest, wheel: Wheel, action: Action, selection: SelectedRows, values: dict[str, Any]
) -> None:
    # Never as part of a Django transaction, whatever wheel_transactional says: its commit would come after the answer.
    options = {**request_options(request, values["reason"]), "transactional": False}
    unavailable: WheelUnavailable | RequestInDoubt | None = None
    try:
        results = action.ask(wheel, selection.names, values, options)
    except (WheelUnavailable, RequestInDoubt) as error:
        results, unavailable = error.results, error
    action.report(request, results)
    if selection.problems:
        messages.warning(request, selection.problems)
    if unavailable is not None:
        count = len(selection.names) - len(results)
        messages.error(request, counted(action.unanswered, count, error=failure(unavailable)))
    if results:
        action.log(request, results, values["reason"], selection.row)


def failure(error: Exception) -> str:
    """Return a sentence about a request that failed: the consequence and the cause, with the error's notes."""
    notes = "; ".join([str(error).removesuffix("."), *getattr(error, "__notes__", [])])
    cause = printable(masked_text(notes), ERROR_CUT)
    if isinstance(error, WheelUnavailable):
        return f"{cause}."
    return _(
        "The request failed, or its result is not known; check the tasks before you repeat it. Cause: %(cause)s."
    ) % {"cause": cause}


# -- the admin's log -----------------------------------------------------------------------------------


def log_names(
    request: HttpRequest,
    page: str,
    label: Promise,
    results: Mapping[str, str],
    texts: tuple[Promise, Promise],
    reason: str,
    row: str = "",
) -> None:
    """Write the entry of a request on named rows.

    Args:
        results: name → result.
        texts: the number of rows, and their names.
    """
    of_count, of_names = texts
    names = [printable(name, 40) for name in list(results)[:LOGGED]] + ["…"] * (len(results) > LOGGED)
    subject = names[0] if len(results) == 1 else counted(of_count, len(results))
    named = str(of_names % dict.fromkeys(("names", "ids"), ", ".join(names)))
    result = f"{label}: {results_text(Counter(results.values()))}"
    log(request, page, f"{label}: {subject}", reason, named, result=result, row=row)


def log(request: HttpRequest, page: str, title: str, reason: str, *more: str, result: str = "", row: str = "") -> None:
    """Write an entry on a page of this app; where it has no ``result`` of its own, its title says all."""
    model = apps.get_model("django_wheel", page)
    reasons = [_("reason: %(reason)s") % {"reason": printable(reason, 500)}] if reason else []
    try:
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type_id=ContentType.objects.get_for_model(model, for_concrete_model=False).pk,
            object_id=row,
            object_repr=title[:TITLE_CUT],
            action_flag=CHANGE,
            change_message="; ".join([result or title, *reasons, *more]),
        )
    except DatabaseError as error:
        text = _("The action is done, but the admin's log has no entry of it: %(error)s.")
        messages.warning(request, text % {"error": printable(error, 300)})
