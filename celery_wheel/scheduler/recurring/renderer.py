"""The renderer: an occurrence of a schedule as the message that ``apply_async`` would send at its instant.

::

    Definition.call ─► TaskCall ─► bulk_load.Renderer ─┬─ the first two of a kind, by Celery's own code ─┐
                                                       └─ all others, by a template ─► stored_form       ├─► Message
         or apply_entry ─► capture ──────────────────────────────────────────────────────────────────────┘

    task id       made of the envelope id and does not reveal it: a commit that is tried again sends the same id
    expires       in seconds after the run is due; the task's own ``expires`` too
    misfire, key  the schedule's before those of the task's route
    route         of the task and its options, also one with ``wheel=False``: no worker holds the message

A task that is not registered in this process is sent by its name, as Beat does: its worker may be another project. The
log says so once. The queue is declared, so the message waits in it for the first worker. Anything that keeps
``apply_async`` from sending (a router of the project, arguments that the task does not take, a queue that may not be
made, a message that is too large) raises, and the engine tries again for an hour. A broker or a result backend that
does not answer raises BrokerError: the occurrence is made later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from celery_wheel.bulk_load.message_template import MessageTemplate
from celery_wheel.bulk_load.renderer import Renderer
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.engine.intake.stored_form import StoredForm, stored_form
from celery_wheel.engine.recurring.occurrence import Occurrence, header_of
from celery_wheel.errors import BrokerError, RecurrenceError
from celery_wheel.producer.eta import DueTime
from celery_wheel.producer.options import parse
from celery_wheel.recurring.definition import Definition
from celery_wheel.requests.schedules.task_names import warn_of_unknown
from celery_wheel.scheduler.recurring.capture import CapturingProducer
from celery_wheel.store.message_pack import PackedKind
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class ApplyEntry(Protocol):
    """Code of the application that publishes the occurrences of some schedules, instead of the templates."""

    def watches(self, stored: Schedule) -> bool:
        """Whether it publishes those of this schedule."""

    def __call__(self, stored: Schedule, definition: Definition, producer: CapturingProducer) -> None:
        """Publish an occurrence by the producer, whose ``task_id`` the task may take as its id."""


class ScheduleRenderer:
    """Implements ``engine.recurring.port.OccurrenceRenderer`` for one engine; use it in one thread.

    Args:
        decode: reads bytes of the wheel queue (see ``Broker.decode``).
        declare: declares the queues of messages (see ``declare``); without it they must exist.
    """

    def __init__(
        self,
        app: Any,
        max_bytes: int,
        decode: Callable[[bytes], Message | Unreadable],
        apply_entry: ApplyEntry | None = None,
        declare: Callable[[Iterable[Any]], None] | None = None,
    ) -> None:
        self._app = app
        self._decode = decode
        self._apply_entry = apply_entry
        self._renderer = Renderer(app, 1, max_bytes, takes_native=True)
        self._renderer.sampler.declare = declare
        self._forms: WeakKeyDictionary[MessageTemplate, StoredForm | None] = WeakKeyDictionary()
        self._is_eager = bool(app.conf.task_always_eager)

    def render(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        if self._is_eager:
            raise RecurrenceError("task_always_eager must be False in the scheduler, got True: no task would be sent")
        try:
            message = self._message(schedule, definition, occurrence)
        except Exception as error:
            if self._renderer.is_outage(error):
                raise BrokerError(f"its message cannot be made now: {error!r}") from error
            raise
        misfire = definition.call.wheel.get("misfire")
        if misfire is not None:
            message.misfire_ms = parse({"misfire": misfire}).misfire_ms
        return message

    def is_watched(self, schedule: Schedule) -> bool:
        return self._apply_entry is not None and self._apply_entry.watches(schedule)

    def _message(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        warn_of_unknown(self._app, definition.call.task)
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"celery-wheel task {occurrence.envelope_id}"))
        header = {OCCURRENCE: header_of(schedule, definition, occurrence)}
        due = _due_time(occurrence.due_ms)
        if self._apply_entry is not None and self._apply_entry.watches(schedule):
            producer = CapturingProducer(self._app, self._renderer.sampler, due, task_id, header)
            self._apply_entry(schedule, definition, producer)
            return self._read(producer.raw())
        call = self._call(definition, due, task_id, header)
        call.envelope_id = occurrence.envelope_id
        rendered = self._renderer.render(call)
        template, columns = rendered.template, [[value] for value in rendered.values]
        if not isinstance(template, MessageTemplate):
            return self._read(template.fill(rendered.values))
        if template not in self._forms:
            self._forms[template] = stored_form(PackedKind(template, 1, columns), self._decode)
        form = self._forms[template]
        block = None if form is None else form.block(columns)
        return self._read(template.fill(rendered.values)) if block is None else block.messages()[0]

    def _read(self, raw: bytes) -> Message:
        message = self._decode(raw)
        if isinstance(message, Unreadable):
            raise RecurrenceError(f"its message cannot be read: {message.reason}")
        return message

    def _call(self, definition: Definition, due: DueTime, task_id: str, header: dict[str, Any]) -> TaskCall:
        found = definition.call
        task = self._app.tasks.get(found.task)
        options = dict(found.options)
        options["headers"] = {**options.get("headers", {}), **header}
        expires = options.get("expires", getattr(task, "expires", None))
        if isinstance(expires, int | float):
            # As a time: an occurrence may be made long before or after it is due.
            options["expires"] = _EPOCH + timedelta(microseconds=due.at_us) + timedelta(seconds=expires)
        return TaskCall(found.task, task, found.args, found.kwargs, options, due, task_id, found.wheel.get("key"))

    def close(self) -> None:
        self._renderer.close()


def _due_time(due_ms: int) -> DueTime:
    return DueTime((_EPOCH + due_ms * _MILLISECOND).isoformat(), due_ms * 1_000)
