"""An action on all tasks that match a filter: its confirmation, its page with the progress, and the list of actions.

::

    list ── POST act/ verb, all, filter ──► count, confirmation ── POST the same, sure ──► ``Wheel.bulk.begin`` ─┐
                                                                                                                  ▼
    GET bulk/: under way and recent ──► GET bulk/<id>/: progress, results; bulk.js asks for them every second ◄───┘
                                        POST bulk/<id>/ stop, continue or discard

The holders carry the action out: no page need be open. All of it is in the store, so every operator sees the same. A
page that asks for the progress costs one statement, whatever is pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.template.loader import render_to_string
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.requests.bulk import BulkAction
from celery_wheel.store.bulk_model import ASKED, DISCARDED, FINISHED, RUNNING, STOPPED
from celery_wheel.store.model import HOUR_MS, MOVE, ORIGIN, REQUEUABLE, REQUEUE, Position
from celery_wheel.store.ports.pages import END, Criteria, Page, StoppedTask, Task
from celery_wheel.values import pages_of
from celery_wheel.values.format import printable
from celery_wheel.values.text import whole_number
from django_wheel.formats import counted, ngettext_lazy, result_label
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.query import PageQuery
from django_wheel.views.requests import Render, SelectionError, address, attempt, log, page_before, request_options
from django_wheel.views.task_actions import ACTIONS, MAX_TASKS, TASKS, TaskAction

#: Pages that are read to count rejected tasks, or tasks of a group: their number is in no tally.
PAGES = 20
#: Actions of the list.
LISTED = 50

STATES = {
    ASKED: gettext_lazy("waits for the scheduler"),
    RUNNING: gettext_lazy("under way"),
    STOPPED: gettext_lazy("stopped"),
    FINISHED: gettext_lazy("over"),
    DISCARDED: gettext_lazy("discarded"),
}
#: The things that an operator may do to an action: the commands of ``BulkActions``.
DOINGS = {
    "stop": (gettext_lazy("Stop"), (ASKED, RUNNING)),
    "continue": (gettext_lazy("Continue"), (STOPPED,)),
    "discard": (gettext_lazy("Discard"), (STOPPED,)),
}
_ALL = gettext_lazy("all matching tasks")
_SHARDS = ngettext_lazy(
    "No scheduler holds shard %(shards)s: its tasks wait until a scheduler does.",
    "No scheduler holds the shards %(shards)s: their tasks wait until a scheduler does.",
)
_GONE = ngettext_lazy(
    "%(number)s task did not match any more when its turn came: it was dispatched or changed meanwhile.",
    "%(number)s tasks did not match any more when their turn came: they were dispatched or changed meanwhile.",
)


@dataclass(frozen=True, slots=True)
class Matching:
    page: str
    outcome: str
    criteria: Criteria

    @classmethod
    def of(cls, action: TaskAction, filter_: str) -> Matching:
        """Raises SelectionError for a filter with a value that a list would ignore: more tasks would match."""
        query = PageQuery(QueryDict(filter_))
        kind = query.choice("kind", REQUEUABLE) or REQUEUABLE[0]
        if query.problems:
            text = _("Nothing was done, because the filter has an error: %(error)s.")
            raise SelectionError(text % {"error": "; ".join(query.problems)})
        return cls(action.page, kind if action.page == "rejected" else "", query.criteria)

    def read(self, wheel: Wheel, cursor: Position | None) -> Page[Task] | Page[StoppedTask]:
        criteria = asdict(self.criteria)
        if self.page == "pending":
            return wheel.pending(cursor or ORIGIN, MAX_TASKS, **criteria)
        return wheel.outcomes(self.outcome, before=cursor or END, limit=MAX_TASKS, **criteria)

    def count(self, wheel: Wheel) -> tuple[int, str]:
        """Return the number of tasks that match, and "most" or "least" where it is a bound of it."""
        criteria = self.criteria
        if self.page == "pending" and criteria.group is None:  # the counts by the hour know no group
            edges = [ms for ms in (criteria.from_ms, criteria.to_ms) if ms is not None]
            pending = sum(hour.pending for hour in wheel.forecast(**asdict(criteria)))
            return pending, "most" if any(at_ms % HOUR_MS for at_ms in edges) else ""
        pages = list(islice(pages_of(partial(self.read, wheel), None), PAGES))
        found = sum(not isinstance(one, StoppedTask) or one.is_stopped for page in pages for one in page.items)
        return found, "least" if pages[-1].next is not None else ""


def facts_of(criteria: Criteria) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in asdict(criteria).items() if value is not None]


@dataclass(frozen=True)
class BulkView:
    """A bulk action as its page and the list show it."""

    bulk: BulkAction
    now_ms: int

    @property
    def action(self) -> TaskAction:
        return ACTIONS[self.bulk.request.word]

    @property
    def label(self) -> Promise:
        return self.action.label

    @property
    def facts(self) -> list[tuple[str, Any]]:
        return facts_of(self.bulk.request.criteria)

    @property
    def state(self) -> Promise:
        if self.bulk.state == RUNNING and not self.bulk.is_counted:
            return gettext_lazy("the tasks are counted")
        return STATES[self.bulk.state]

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(result_label(result), count) for result, count in self.bulk.results.items()]

    @property
    def problems(self) -> list[tuple[str, str]]:
        return [(task_id, result_label(result)) for task_id, result in self.bulk.problems]

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about what the action waits for, and about tasks without a result."""
        found, bulk = [], self.bulk
        if shards := bulk.waiting(self.now_ms):
            found.append(counted(_SHARDS, len(shards), shards=", ".join(map(str, shards))))
        labels = [str(DOINGS[do][0]) for do in ("stop", "continue", "discard") if do in bulk.asked]
        if labels:
            text = _("The scheduler has not carried out yet: %(commands)s.")
            found.append(text % {"commands": ", ".join(labels)})
        if bulk.state == FINISHED and bulk.found > bulk.count:
            found.append(counted(_GONE, bulk.found - bulk.count))
        return found

    @property
    def doings(self) -> list[tuple[str, Promise, bool]]:
        """Return each command with its label, and whether it is possible now."""
        return [(do, label, self.bulk.state in states) for do, (label, states) in DOINGS.items()]

    @property
    def full(self) -> int:
        """The end of the bar: a finished action has none left, also where tasks went away meanwhile."""
        return max(1, self.bulk.count if self.bulk.state == FINISHED else self.bulk.found)


def handle(request: HttpRequest, action: TaskAction, render: Render) -> HttpResponse:
    """Count the tasks and ask for confirmation; or, when the user has confirmed, begin."""
    back, filter_ = page_before(request, action.page), request.POST.get("filter", "")
    form = action.form(request.POST if "sure" in request.POST else None)

    def act() -> HttpResponse:
        wheel, matching = project_wheel(), Matching.of(action, filter_)
        facts = facts_of(matching.criteria)
        counts_typed = action.verb == "cancel" and not facts
        typed, shown = request.POST.get("typed", ""), request.POST.get("shown", "")
        is_typed = not counts_typed or (whole_number(typed) is not None and whole_number(typed) == whole_number(shown))
        if form.is_valid() and is_typed:
            bulk = _begin(request, wheel, action, matching, form.cleaned_data)
            return HttpResponseRedirect(address(request, "pending_bulk_one", bulk=bulk))
        count, bound = matching.count(wheel)
        if not count and bound != "least":
            raise SelectionError(_("Nothing was done, because no task matches the filter."))
        values = {"action": action, "count": count, "bound": bound, "facts": facts, "filter": filter_}
        values |= {"counts_typed": counts_typed, "mistyped": form.is_bound and not is_typed}
        title = f"{action.label}: {_ALL}" if bound == "least" else counted(action.question_of_all, count)
        return render(title, {**values, "form": form, "back": back})

    return attempt(request, back, act)


def _begin(
    request: HttpRequest, wheel: Wheel, action: TaskAction, matching: Matching, values: Mapping[str, Any]
) -> str:
    eta = values.get("eta")
    eta_ms = None if eta is None else round(eta.timestamp() * 1_000)
    verb = action.verb if action.verb in ("cancel", REQUEUE) else MOVE
    about = request_options(request, values["reason"])
    bulk = wheel.bulk.begin(verb, matching.criteria, outcome=matching.outcome, eta_ms=eta_ms, **about)
    named = _("filter: %(filter)s") % {"filter": printable(request.POST.get("filter", ""), 500)}
    log(request, action.page, f"{action.label}: {_ALL}", values["reason"], named, bulk)
    return bulk


def listed(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
    """Return the actions under way and those of the last week, the latest first."""
    return {"actions": [BulkView(one, now_ms()) for one in wheel.bulk.latest(LISTED)]}


def shown(wheel: Wheel, bulk: str) -> dict[str, Any]:
    """Return the values of an action's page."""
    found = wheel.bulk.get(bulk)
    if found is None:
        text = _("The store has no bulk action with this id: a week after its end it is forgotten.")
        raise Http404(text)
    return {"view": BulkView(found, now_ms()), "bulk": found}


def progress(request: HttpRequest, bulk: str) -> HttpResponse:
    """Return what the page's script shows."""
    try:
        values = shown(project_wheel(), bulk)
    except (WheelError, ImproperlyConfigured) as error:  # the script says that the page is out of date
        return HttpResponse(masked_text(str(error)), status=503, content_type="text/plain; charset=utf-8")
    view: BulkView = values["view"]
    html = render_to_string("django_wheel/bulk_state.html", values, request)
    doings = {do: is_possible for do, _label, is_possible in view.doings}
    return JsonResponse({"html": html, "over": view.bulk.is_over, "doings": doings})


def change(request: HttpRequest, bulk: str) -> HttpResponse:
    """Stop, continue or discard the action. The scheduler carries it out; the page says so until then."""
    here = address(request, "pending_bulk_one", bulk=bulk)

    def act() -> HttpResponse:
        do, wheel = request.POST.get("do", ""), project_wheel()
        found = wheel.bulk.get(bulk)
        if do not in DOINGS or found is None:
            raise SelectionError(_("Nothing was done, because the action is not known any more."))
        label, states = DOINGS[do]
        view = BulkView(found, now_ms())
        if found.state not in states:
            text = _("Nothing was done, because the action is: %(state)s.")
            raise SelectionError(text % {"state": view.state})
        carry_out = {"stop": wheel.bulk.stop, "continue": wheel.bulk.continue_, "discard": wheel.bulk.discard}[do]
        carry_out(bulk, **request_options(request, ""))
        done = counted(TASKS, found.count)
        log(request, view.action.page, f"{view.label}: {label} ({done})", "", bulk)
        messages.info(request, _("The scheduler is asked: %(command)s.") % {"command": label})
        return HttpResponseRedirect(here)

    return attempt(request, here, act)
