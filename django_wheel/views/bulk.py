"""An action on all tasks that match a filter: its confirmation, its state, its steps, and its page with the progress.

::

    list ── POST act/ verb, all, filter ──► count, confirmation ── POST the same, sure ──► session ─┐
                                                                                                    ▼
      ┌── GET bulk/: progress, results ◄── POST bulk/ step: requests for a second ◄── bulk.js, or the button *Continue*
      └── closed, or without an answer: the state stays in the session; *Continue* goes on, *Stop* ends the action

The action is on the tasks that match when their page is read, and had their position when the action began: a task that
is sent later, or that the action itself has moved, is left out. Each task's result is in the audit log, by the id of
the action. One action of a session runs at a time, and one of its pages carries a step out at a time. No holder waits
for an action: between two requests it does its other work. A repeated step changes nothing more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse, QueryDict
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import RequestInDoubt, WheelError, WheelUnavailable
from celery_wheel.requests.results import CommandResult
from celery_wheel.store.model import HOUR_MS, ORIGIN, REQUEUABLE, Position
from celery_wheel.store.ports.pages import END, Page, StoppedTask, Task
from celery_wheel.values.format import printable, to_datetime
from celery_wheel.values.ids import uuid7
from django_wheel.formats import counted, result_label, results_text
from django_wheel.project import project_wheel
from django_wheel.views.query import PageQuery
from django_wheel.views.requests import (
    Render,
    SelectionError,
    address,
    attempt,
    failure,
    log,
    page_before,
    request_options,
)
from django_wheel.views.task_actions import ACTIONS, MAX_TASKS, TASKS, TaskAction, has_usable_id

#: Problems that the state names; the audit log has all.
PROBLEMS = 20
#: Rejected tasks, or tasks of a group, that are counted; their number is in no tally.
COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Matching:
    page: str
    kind: str
    criteria: dict[str, Any]

    @classmethod
    def of(cls, action: TaskAction, filter_: str) -> Matching:
        """Raises SelectionError for a filter with a value that a list would ignore: more tasks would match."""
        query = PageQuery(QueryDict(filter_))
        kind = query.choice("kind", REQUEUABLE) or REQUEUABLE[0]
        if query.problems:
            text = _("Nothing was done, because the filter has an error: %(error)s.")
            raise SelectionError(text % {"error": "; ".join(query.problems)})
        return cls(action.page, kind, asdict(query.criteria))

    def read(self, wheel: Wheel, cursor: Position | None, limit: int) -> Page[Task] | Page[StoppedTask]:
        if self.page == "pending":
            return wheel.pending(cursor or ORIGIN, limit, **self.criteria)
        return wheel.outcomes(self.kind, before=cursor or END, limit=limit, **self.criteria)

    def count(self, wheel: Wheel) -> tuple[int, bool]:
        """Return how many tasks match, and whether that is their exact number."""
        if self.page == "pending" and self.criteria["group"] is None:  # the counts by the hour know no group
            edges = [ms for ms in (self.criteria["from_ms"], self.criteria["to_ms"]) if ms is not None]
            pending = sum(hour.pending for hour in wheel.forecast(**self.criteria))
            return pending, all(at_ms % HOUR_MS == 0 for at_ms in edges)
        found, cursor = 0, None
        while found < COUNTED:
            page = self.read(wheel, cursor, MAX_TASKS)
            found += sum(not isinstance(one, StoppedTask) or one.is_stopped for one in page.items)
            cursor = page.next
            if cursor is None:
                return found, True
        return found, False

    @property
    def facts(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.criteria.items() if value is not None]


@dataclass(slots=True)
class BulkAction:
    """The state of an action, of values that a session can hold."""

    verb: str
    filter: str  #: query string of the list
    reason: str
    eta_ms: int | None
    total: int  #: tasks that matched when the action began
    ends: list[int]  #: by shard: later positions are left out
    id: str = field(default_factory=uuid7)
    cursor: list[int] | None = None
    results: dict[str, int] = field(default_factory=dict)
    problems: list[list[str]] = field(default_factory=list)  #: task id, result
    unnamed: int = 0  #: tasks without a usable id, which no request can name
    steps: int = 0
    is_over: bool = False
    was_stopped: bool = False
    busy_until_ms: int = 0  #: while a page carries a step out

    @property
    def action(self) -> TaskAction:
        return ACTIONS[self.verb]

    @property
    def counts(self) -> list[tuple[str, int]]:
        return [(result_label(result), count) for result, count in self.results.items()]

    @property
    def labelled_problems(self) -> list[tuple[str, str]]:
        return [(task_id, result_label(result)) for task_id, result in self.problems]

    @property
    def count(self) -> int:
        return sum(self.results.values()) + self.unnamed

    @property
    def most(self) -> int:
        return max(1, self.count if self.is_over else max(self.total, self.count))

    def step(self, wheel: Wheel, options: dict[str, Any]) -> None:
        """Carry out the action on the next tasks. After an error the step can be repeated: it has the other tasks."""
        cursor = None if self.cursor is None else Position(*self.cursor)
        page = Matching.of(self.action, self.filter).read(wheel, cursor, MAX_TASKS)
        tasks = [task for task in page.items if self._is_meant(task)]
        named = [task.task_id for task in tasks if has_usable_id(task)]
        results: Mapping[str, CommandResult] = {}
        if named:
            values = {"eta": None if self.eta_ms is None else to_datetime(self.eta_ms)}
            how = {**options, "reason": self.reason, "bulk": self.id, "transactional": False}
            try:
                results = self.action.ask(wheel, list(dict.fromkeys(named)), values, how)
            except (WheelUnavailable, RequestInDoubt) as error:  # of some shards
                self._count({task_id: one for task_id, one in error.results.items() if one == CommandResult.DONE})
                raise
        self.unnamed += len(tasks) - len(named)
        self._count(results)
        bad = [[task_id, str(result)] for task_id, result in results.items() if result != CommandResult.DONE]
        self.problems = (self.problems + bad)[:PROBLEMS]
        self.cursor = None if page.next is None else list(page.next)
        self.steps += 1
        self.is_over = page.next is None

    def _count(self, results: Mapping[str, CommandResult]) -> None:
        self.results = dict(Counter(self.results) + Counter(map(str, results.values())))

    def _is_meant(self, task: Task | StoppedTask) -> bool:
        if task.shard >= len(self.ends):  # the store has got more shards meanwhile
            return False
        if isinstance(task, StoppedTask):
            return task.is_stopped and task.id <= self.ends[task.shard]
        return task.seq <= self.ends[task.shard]


def begin(wheel: Wheel, action: TaskAction, filter_: str, values: Mapping[str, Any]) -> BulkAction:
    total, _exact = Matching.of(action, filter_).count(wheel)
    eta = values.get("eta")
    eta_ms = None if eta is None else round(eta.timestamp() * 1_000)
    ends = [wheel.store.state(shard).seq for shard in range(wheel.store.shards)]
    return BulkAction(action.verb, filter_, values["reason"], eta_ms, total, ends)


#: Seconds of one step: a browser that goes away has the state of a second ago.
STEP_S = 1.0
#: A step that is not over by then has died with its process.
BUSY_MS = 10_000
_SESSION = "wheel_bulk"


def handle(request: HttpRequest, action: TaskAction, render: Render) -> HttpResponse:
    """Count the tasks and ask for confirmation; or, when the user has confirmed, begin."""
    back, filter_ = page_before(request, action.page), request.POST.get("filter", "")
    form = action.form(request.POST if "sure" in request.POST else None)

    def act() -> HttpResponse:
        if (state := _state(request)) is not None and not state.is_over:
            text = _("Another action on all matching tasks is not over. Continue or stop it first.")
            messages.warning(request, text)
            return HttpResponseRedirect(address(request, "pending_bulk"))
        wheel = project_wheel()
        matching = Matching.of(action, filter_)
        if form.is_valid():
            _keep(request, begin(wheel, action, filter_, form.cleaned_data))
            return HttpResponseRedirect(address(request, "pending_bulk"))
        count, is_exact = matching.count(wheel)
        if not count:
            raise SelectionError(_("Nothing was done, because no task matches the filter."))
        values = {"action": action, "count": count, "is_exact": is_exact, "facts": matching.facts, "filter": filter_}
        return render(counted(action.question_of_all, count), {**values, "form": form, "back": back})

    return attempt(request, back, act)


def page(request: HttpRequest, render: Callable[[dict[str, Any]], HttpResponse]) -> HttpResponse:
    """Show the action of the session; or carry out its next step, or stop it."""
    state = _state(request)
    if state is None:
        messages.info(request, _("There is no action on all matching tasks."))
        return HttpResponseRedirect(address(request, "pending_changelist"))
    problem = ""
    if request.method == "POST" and not state.is_over:
        if "stop" in request.POST:
            state.is_over = state.was_stopped = True
            _log(request, state)
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
        return HttpResponseRedirect(address(request, "pending_bulk"))
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
        _log(request, state)
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


def _log(request: HttpRequest, state: BulkAction) -> None:
    label, named = state.action.label, _("filter: %(filter)s") % {"filter": printable(state.filter, 500)}
    title, result = f"{label}: {counted(TASKS, state.count)}", f"{label}: {results_text(state.results)}"
    log(request, state.action.page, title, result, state.reason, named)


def _state(request: HttpRequest) -> BulkAction | None:
    kept = request.session.get(_SESSION)
    try:
        return None if kept is None else BulkAction(**kept)
    except TypeError:  # another version wrote it
        return None


def _keep(request: HttpRequest, state: BulkAction) -> None:
    request.session[_SESSION] = asdict(state)
