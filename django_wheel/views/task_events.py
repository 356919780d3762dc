"""The events in the life of a task, from its row, its outcomes, its lane, the gates in force and the result backend.

::

    sent ─► accepted ─► moved* ─► due ─► held ─► dispatched ─► redelivered* ─► executed
                                         └────► cancelled, rejected, expired, parked

A held task waits in the lane of its gate, and its row keeps that lane after the dispatch: so a page tells later, too,
that a gate held the task. The store keeps the last position of a task alone: a reschedule replaces the requested time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery.states import SUCCESS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheel.store.model import PAUSED, Gate
from celery_wheel.store.ports.pages import Detail, Task
from django_wheel.drawing.timeline import TimelineEvent, TimelineStage
from django_wheel.formats import format_duration, gate_label, printable, state_label
from django_wheel.views.task_result import TaskResult

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
        yield TimelineEvent(now_ms, "doubt", _("May have been dispatched"), _("The settlement is not stored yet."))
    yield from _dispatches(detail)
    if detail.state in OPEN and task.expires_ms:
        yield TimelineEvent(task.expires_ms, "expires", _("Expires"), ahead=task.expires_ms > now_ms)
    if result is not None and result.ended_ms is not None:
        label = _("Execution ended: %(state)s") % {"state": printable(result.state)}
        worker = _("on the worker %(name)s") % {"name": printable(result.worker)} if result.worker else ""
        kind = "executed" if result.state == SUCCESS else "failed"
        yield TimelineEvent(result.ended_ms, kind, label, worker, stage=OVER)


def gates_of(task: Task, gates: Sequence[Gate]) -> list[Gate]:
    """Return the gates that hold the task, or will hold it when it is due."""
    names = {"queue": task.target, "task": task.task}
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
    if lane is not None and lane.target is not None and not in_force:
        if lane.scope is not None:
            label = _("Held by a gate: %(gate)s") % {"gate": gate_label(lane.scope, lane.target)}
        else:
            label = _("Waited for %(target)s, which refused messages") % {"target": printable(lane.target)}
        yield TimelineEvent(due_ms, "held", label, stage=HELD, ahead=due_ms > now_ms)


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
