"""The page of a task: its row, its life to scale and as a table, its execution, and its body as a download.

A held task waits in the lane of its gate, and its row keeps that lane after the dispatch: so a page tells later, too,
that a gate held the task. The store keeps the last position of a task alone: a reschedule replaces the requested time.
The app's result backend knows state, time and worker of the execution; the page never shows the result's value. A
backend may be slow or unreachable, so a thread of its own asks it, and a page waits a second at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.control import Wheel, now_ms
from celery_wheel.errors import WheelError
from celery_wheel.overview import in_thread
from celery_wheel.store.model import PAUSED, WAITING, Gate
from celery_wheel.store.ports.pages import ALL_BYTES, Detail, Task
from celery_wheel.values.error_text import error_text
from celery_wheel.values.format import format_duration, printable
from django_wheel.drawing.charts import TimeAxis
from django_wheel.formats import gate_label, state_label
from django_wheel.project import masked_text, project_wheel
from django_wheel.views.page import PageAdmin
from django_wheel.views.payload import sight_of
from django_wheel.views.query import PageQuery
from django_wheel.views.task_actions import of_state

#: Width of a mark in percents of the axis: of the events that would cover each other, the last one has the mark.
MARK = 2


@dataclass(frozen=True, slots=True)
class TimelineStage:
    """A stage of a life; its bar has a colour by the key. Without a label it has no bar: the life is over."""

    key: str
    label: Promise | str


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """``stage`` is the stage that the event begins, if any. ``ahead``: it has not happened yet."""

    at_ms: int
    kind: str
    label: str
    text: str = ""
    actor: str = ""
    stage: TimelineStage | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class TimelineBar:
    x: float
    width: float
    stage: TimelineStage
    length_ms: int


@dataclass(frozen=True, slots=True)
class Timeline:
    axis: TimeAxis
    now: float | None  #: the place of the present; None where it is beyond the axis
    rows: Sequence[tuple[TimelineEvent, int | None]]  #: with the time since the row before; None in the first row
    bars: Sequence[TimelineBar]
    marks: Sequence[tuple[float, TimelineEvent]]  #: with its place

    @property
    def stages(self) -> list[tuple[TimelineStage, int]]:
        """Each stage once, with the sum of its lengths."""
        lengths: dict[TimelineStage, int] = {}
        for bar in self.bars:
            lengths[bar.stage] = lengths.get(bar.stage, 0) + bar.length_ms
        return list(lengths.items())


def timeline(events: Iterable[TimelineEvent], now_ms: int, *, goes_on: bool) -> Timeline:
    """Return the drawing of events.

    Args:
        goes_on: the task is pending, so its axis includes the present, and its last stage goes on.
    """
    ordered = sorted(events, key=lambda one: one.at_ms)
    end_ms = max([one.at_ms for one in ordered] + [now_ms] * goes_on)
    axis = TimeAxis(ordered[0].at_ms, max(end_ms, ordered[0].at_ms + 1))
    begun = [(one.at_ms, one.stage) for one in ordered if one.stage is not None and not one.ahead]
    ends = [at_ms for at_ms, _ in begun[1:]] + [now_ms if goes_on else end_ms]
    bars = [
        TimelineBar(axis.at(at_ms), round(axis.at(until_ms) - axis.at(at_ms), 2), stage, until_ms - at_ms)
        for (at_ms, stage), until_ms in zip(begun, ends, strict=True)
        if until_ms > at_ms and stage.label
    ]
    before = [None, *ordered]
    return Timeline(
        axis,
        axis.at(now_ms) if goes_on else None,
        [(one, None if last is None else one.at_ms - last.at_ms) for last, one in zip(before, ordered, strict=False)],
        bars,
        list({round(axis.at(one.at_ms) / MARK): (axis.at(one.at_ms), one) for one in ordered}.values()),
    )


WAIT_S = 1.0

#: Held while a thread asks the result backend: one that does not answer takes no second thread.
_ASKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class TaskResult:
    """``state`` is Celery's. ``problem``: a sentence where the backend did not answer; then all else is empty."""

    state: str = ""
    ended_ms: int | None = None
    worker: str = ""
    problem: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in states.READY_STATES


def task_result(app: Any, task_id: str) -> TaskResult | None:
    """Return the execution of a task; None where the app has no result backend, or the backend does not know it."""
    if not task_id or isinstance(app.backend, DisabledBackend):
        return None
    try:
        meta = _answer(app, task_id)
    except Late:
        return TaskResult(problem=_("The result backend did not answer within a second."))
    except Exception as error:  # each backend raises errors of its own
        text = _("The result backend could not be read: %(error)s.")
        return TaskResult(problem=text % {"error": error_text(error)})
    state = str(meta.get("status") or states.PENDING)
    if state == states.PENDING:  # Celery's word for an id that the backend does not know
        return None
    return TaskResult(state, _ms(meta.get("date_done")), str(meta.get("worker") or ""))


def _answer(app: Any, task_id: str) -> dict[str, Any]:
    """Ask the result backend in a thread that does not keep the process alive. Raises Late after ``WAIT_S``."""
    until_s = time.monotonic() + WAIT_S
    if not _ASKING.acquire(timeout=WAIT_S):
        raise Late
    asked = in_thread(partial(_ask, app, task_id), "wheel-task-result")
    asked.add_done_callback(lambda _: _ASKING.release())
    return asked.result(until_s - time.monotonic())


def _ask(app: Any, task_id: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = app.backend.get_task_meta(task_id, cache=False)
    finally:
        connections.close_all()  # those of this thread: a backend in Django's database opens one
    return found


def _ms(done: Any) -> int | None:
    """Return the instant of Celery's ``date_done``: a time or its ISO text, in UTC where it has no zone."""
    if isinstance(done, str):
        done = datetime.fromisoformat(done)
    if not isinstance(done, datetime):
        return None
    moment = done if done.tzinfo else done.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1_000)


BROKER = TimelineStage("broker", gettext_lazy("in the broker"))
PENDING = TimelineStage("pending", gettext_lazy("pending"))
OVERDUE = TimelineStage("overdue", gettext_lazy("overdue"))
HELD = TimelineStage("held", gettext_lazy("held"))
QUEUED = TimelineStage("queued", gettext_lazy("in its queue, or running"))
OVER = TimelineStage("over", "")

#: States in which the wheel has not handed the task over yet.
OPEN = ("pending", "in doubt")


def events(detail: Detail, gates: Sequence[Gate], result: TaskResult | None, now_ms: int) -> Iterator[TimelineEvent]:
    """Yield the events of a task in the order in which they can happen."""
    task = detail.task
    yield TimelineEvent(task.created_ms, "sent", _("Sent by the producer"), stage=BROKER)
    yield TimelineEvent(task.accepted_ms, "accepted", _("Accepted: stored by the wheel"), stage=PENDING)
    for one in detail.outcomes:
        stage = PENDING if one.kind == "moved" else OVER
        label = state_label(one.kind).capitalize()
        yield TimelineEvent(one.at_ms, one.kind, label, printable(one.reason, 500), printable(one.actor), stage)
    if detail.state in (*OPEN, "dispatched"):
        yield _due(task, now_ms)
        yield from _held(detail, gates, now_ms)
    if detail.state == "in doubt":
        yield TimelineEvent(now_ms, "doubt", _("May have been dispatched"), _("Its settlement is not stored yet."))
    yield from _dispatches(detail)
    if detail.state in OPEN and task.expires_ms:
        yield TimelineEvent(task.expires_ms, "expires", _("Expires"), ahead=task.expires_ms > now_ms)
    if result is not None and result.ended_ms is not None:
        label = _("Execution ended: %(state)s") % {"state": printable(result.state)}
        worker = _("on the worker %(name)s") % {"name": printable(result.worker)} if result.worker else ""
        kind = "executed" if result.state == states.SUCCESS else "failed"
        yield TimelineEvent(result.ended_ms, kind, label, worker, stage=OVER)


def gates_of(task: Task, gates: Sequence[Gate]) -> list[Gate]:
    """Return the gates that hold the task, or will hold it when it is due."""
    names = {"queue": task.target, "task": task.task, "group": task.group}
    return [gate for gate in gates if gate.for_all or names.get(gate.scope) == gate.name]


def _due(task: Task, now_ms: int) -> TimelineEvent:
    """Return the requested time; it is at or after the acceptance, since a task may be sent late."""
    at_ms = max(task.eta_ms, task.accepted_ms)
    text = _("requested for %(time)s earlier") % {"time": format_duration(at_ms - task.eta_ms)}
    return TimelineEvent(at_ms, "due", _("Due"), text if at_ms > task.eta_ms else "", "", OVERDUE, at_ms > now_ms)


def _held(detail: Detail, gates: Sequence[Gate], now_ms: int) -> Iterator[TimelineEvent]:
    task, lane = detail.task, detail.lane
    due_ms = max(task.eta_ms, task.accepted_ms)
    in_force = gates_of(task, gates) if detail.state == "pending" else []
    for gate in in_force:
        at_ms = max(due_ms, gate.at_ms)
        label = _("Held by the pause of %(gate)s") if gate.state == PAUSED else _("Held while %(gate)s resumes slowly")
        named = label % {"gate": gate_label(gate.scope, gate.name)}
        why = (printable(gate.reason, 500), printable(gate.actor))
        yield TimelineEvent(at_ms, "held", named, *why, stage=HELD, ahead=at_ms > now_ms)
    if lane is not None and lane.lane == WAITING and not any(gate.scope == "group" for gate in in_force):
        yield TimelineEvent(due_ms, "held", capfirst(_waits(task)), stage=HELD, ahead=due_ms > now_ms)
    if lane is not None and lane.target is not None and not in_force:
        if lane.scope is not None:
            label = _("Held by a gate: %(gate)s") % {"gate": gate_label(lane.scope, lane.target)}
        else:
            label = _("Waited for %(target)s, which refused messages") % {"target": printable(lane.target)}
        yield TimelineEvent(due_ms, "held", label, stage=HELD, ahead=due_ms > now_ms)


def _waits(task: Task) -> str:
    queue = printable(task.target)
    if task.group is None:
        return _("waits for room in queue %(queue)s") % {"queue": queue}
    return _("waits in group %(group)s for queue %(queue)s") % {"group": printable(task.group), "queue": queue}


def _dispatches(detail: Detail) -> Iterator[TimelineEvent]:
    lane = detail.lane
    marked = lane is not None and lane.redelivered and lane.target is None  # a lane of replayed tasks
    for number, at_ms in enumerate(detail.dispatches_ms):
        if number or marked:
            label, text, kind = _("Redelivered"), _("It may be a second copy."), "redelivered"
        else:
            late = format_duration(detail.task.late_ms)
            label, text, kind = _("Dispatched"), _("%(lateness)s late") % {"lateness": late}, "dispatched"
        yield TimelineEvent(at_ms, kind, label, text, stage=QUEUED)


def page(admin: PageAdmin, request: HttpRequest, timer_id: int) -> HttpResponse:
    def values(wheel: Wheel, query: PageQuery) -> dict[str, Any]:
        sight = sight_of(request)
        detail = _detail(wheel, timer_id, sight.most_bytes)
        return {**_values(wheel, detail), **sight.message_values(detail)}

    title = _("Task %(number)s") % {"number": timer_id}
    return admin.answer(request, "django_wheel/task.html", values, title=title)


def body(request: HttpRequest, timer_id: int) -> HttpResponse:
    """Return the bytes of the body, for a browser to save and not to show."""
    try:
        wheel = project_wheel()
        content = wheel.mask.part(_detail(wheel, timer_id, ALL_BYTES).body)
    except (WheelError, ImproperlyConfigured) as error:
        return HttpResponse(masked_text(str(error)), status=503, content_type="text/plain; charset=utf-8")
    response = HttpResponse(content, content_type="application/octet-stream")
    response["Content-Disposition"] = f'attachment; filename="{timer_id}.bin"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _detail(wheel: Wheel, timer_id: int, most_bytes: int) -> Detail:
    found = wheel.store.browse.detail(timer_id, most_bytes) if timer_id < 2**63 else None
    if found is None:
        raise Http404(f"the store has no message {timer_id}; the history may have removed it")
    return found


def _values(wheel: Wheel, detail: Detail) -> dict[str, Any]:
    task, at_ms = detail.task, now_ms()
    result = task_result(wheel.conf.app, task.task_id) if detail.state == "dispatched" else None
    life = events(detail, wheel.overview().gates, result, at_ms)
    return {
        "title": f"{printable(task.task)} {printable(task.task_id, 40)}".strip() or _("Unreadable message"),
        "detail": detail,
        "task": task,
        "waits": _waits(task) if detail.state == "pending" and task.lane == WAITING else "",
        "timeline": timeline(life, at_ms, goes_on=detail.state in OPEN),
        "result": result,
        "several": wheel.store.shards > 1,
        "actions": of_state(detail.state),
    }
