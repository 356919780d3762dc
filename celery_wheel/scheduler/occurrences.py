"""Recurring schedules in the scheduler process: the parts of the engine that need Celery.

The first two occurrences of a kind are rendered by Celery's own code, all others by a template; ``apply_entry`` renders
them where a project changes it. The task id is made of the envelope id and does not reveal it: a commit that is tried
again sends the same id. ``expires``, of the schedule or else of the task, counts from the due time. The schedule's
``misfire``, ``group`` and ``key`` go before those of the task's route, which counts also with ``wheel=False``: no
worker holds the message.

A task that is not registered in this process is sent by its name, as Beat does: its worker may be another project.
Anything that keeps ``apply_async`` from sending raises, and the engine tries again for an hour. A broker or a result
backend that does not answer raises BrokerError: the occurrence is made later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kombu.entity import Queue
from kombu.exceptions import OperationalError

from celery_wheel.broker.envelope import HEADER
from celery_wheel.broker.transport import bounded_connection
from celery_wheel.bulk_load.message_template import MessageTemplate, Sample, Sampler
from celery_wheel.bulk_load.renderer import Renderer
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.engine.intake.stored_form import StoredForm, stored_form
from celery_wheel.engine.recurring.occurrence import Occurrence, header_of
from celery_wheel.errors import BrokerError, RecurrenceError
from celery_wheel.producer.eta import DueTime
from celery_wheel.producer.interception import DivertingProducer, WheelEta
from celery_wheel.producer.options import CallOptions, parse
from celery_wheel.recurring.definition import Definition
from celery_wheel.requests.arguments import warn_of_unknown
from celery_wheel.scheduler.remote_control.revocation import cancel_commands
from celery_wheel.store.audit_model import PROGRAM
from celery_wheel.store.message_pack import PackedKind
from celery_wheel.store.model import Message, Unreadable
from celery_wheel.store.ports import FullStore
from celery_wheel.store.schedule_model import OCCURRENCE, Schedule
from celery_wheel.values.instants import now_ms, utc, utc_of_us

if TYPE_CHECKING:
    from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry


class CapturingProducer:
    """Passed as ``producer`` to ``apply_entry``, for one occurrence; ``headers`` are added to those of the task."""

    def __init__(self, app: Any, sampler: Sampler, due: DueTime, task_id: str, headers: dict[str, Any]) -> None:
        self.task_id = task_id
        self.due_us = due.at_us  #: when the task is due, in Unix microseconds
        self._app = app
        self._sampler = sampler
        self._headers = headers
        self._eta = WheelEta(due, now_ms(), CallOptions(transactional=False))
        self._found: list[Sample] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def publish(self, body: Any, *args: Any, **publish: Any) -> Any:
        headers = publish.get("headers") or {}
        fields = body if isinstance(body, dict) else headers
        if "task" not in fields:  # an event
            return self._sampler.publish(body, *args, **publish)
        self._found.append(self._captured(body, fields, {**publish, "headers": {**headers, **self._headers}}))

    def _captured(self, body: Any, fields: dict[str, Any], publish: dict[str, Any]) -> Sample:
        headers = publish["headers"]
        envelope = headers.get(HEADER)
        if isinstance(envelope, dict) and "eta_ms" in envelope:  # the entry has a countdown; the instant counts
            return self._sampler.capture(body, publish)
        fields = headers if fields is not body else fields
        eta, fields["eta"] = fields.get("eta"), str(self._eta)
        try:
            DivertingProducer(self._app, self._sampler, (headers,), self._eta, {}).publish(body, **publish)
        finally:
            fields["eta"] = eta
        return self._sampler.take()

    def sample(self) -> Sample:
        """Return the message, in the form that it has in the wheel queue, with its queues. Raises RecurrenceError."""
        if len(self._found) != 1:
            raise RecurrenceError(f"apply_entry must publish one task by its producer, got {len(self._found)}")
        return self._found[0]


#: A round of the engine waits for the connection, but no longer than this.
CONNECT_S = 5


class DeclaredQueues:
    """Declares each queue once, and again after it was lost; call it in one thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._names: set[str] = set()

    def __call__(self, queues: Iterable[Any]) -> None:
        """Declare queues. Raises OperationalError where the broker does not answer, and its refusal of a queue."""
        new = {one.name: one for one in queues if isinstance(one, Queue) and one.name not in self._names}
        if not new:
            return
        with bounded_connection(self._app.connection_for_write, heartbeat=0) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
            try:
                for queue in new.values():
                    queue(connection.default_channel).declare()  # type: ignore[no-untyped-call]
            except connection.connection_errors as error:
                raise OperationalError(str(error)) from error
        self._names |= new.keys()

    def forget(self, name: str) -> None:
        self._names.discard(name)


class ScheduleRenderer:
    """Implements ``OccurrenceRenderer`` for one engine; use it in one thread. Without ``queues`` none is declared."""

    def __init__(
        self,
        app: Any,
        max_bytes: int,
        decode: Callable[[bytes], Message | Unreadable],
        apply_entry: BeatApplyEntry | None = None,
        queues: DeclaredQueues | None = None,
    ) -> None:
        self._app = app
        self._decode = decode
        self._apply_entry = apply_entry
        self._renderer = Renderer(app, 1, max_bytes, takes_native=True)
        self._queues = queues
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

    def queue_lost(self, name: str) -> None:
        if self._queues is not None:
            self._queues.forget(name)

    def is_watched(self, schedule: Schedule) -> bool:
        return self._apply_entry is not None and self._apply_entry.watches(schedule)

    def _message(self, schedule: Schedule, definition: Definition, occurrence: Occurrence) -> Message:
        warn_of_unknown(self._app, definition.call.task)
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"celery-wheel task {occurrence.envelope_id}"))
        header = {OCCURRENCE: header_of(schedule, definition, occurrence)}
        moment = utc(occurrence.due_ms)
        due = DueTime(moment.isoformat(), occurrence.due_ms * 1_000)
        if self._apply_entry is not None and self._apply_entry.watches(schedule):
            producer = CapturingProducer(self._app, self._renderer.sampler, due, task_id, header)
            self._apply_entry(schedule, definition, producer)
            sample = producer.sample()
            self._declare(sample.queues)
            return self._read(sample.raw)
        call = self._call(definition, due, task_id, header)
        call.envelope_id = occurrence.envelope_id
        rendered = self._renderer.render(call)
        self._declare(rendered.queues)
        template, columns = rendered.template, [[value] for value in rendered.values]
        if not isinstance(template, MessageTemplate):
            return self._read(template.fill(rendered.values))
        if template not in self._forms:
            self._forms[template] = stored_form(PackedKind(template, 1, columns), self._decode)
        form = self._forms[template]
        block = None if form is None else form.block(columns)
        return self._read(template.fill(rendered.values)) if block is None else block.messages()[0]

    def _declare(self, queues: Iterable[Any]) -> None:
        if self._queues is not None:
            self._queues(queues)

    def _read(self, raw: bytes) -> Message:
        message = self._decode(raw)
        if isinstance(message, Unreadable):
            raise RecurrenceError(f"its message cannot be read: {message.reason}")
        return message

    def _call(self, definition: Definition, due: DueTime, task_id: str, header: dict[str, Any]) -> TaskCall:
        found = definition.call
        task = self._app.tasks.get(found.task)
        options = found.options_at(utc_of_us(due.at_us), task)
        options["headers"] |= header
        wheel = parse(found.wheel or None)
        key = wheel.group or wheel.key
        return TaskCall(found.task, task, found.args, found.kwargs, options, due, task_id, key, wheel.group)

    def close(self) -> None:
        self._renderer.close()


def cancel_replaced(app: Any, store: FullStore, task_ids: Sequence[str]) -> None:
    """Cancel runs that a later run of their schedule replaces. Raises the store's and the broker's errors."""
    ids = list(task_ids)
    store.put_inboxes(cancel_commands(ids, "a later run of its schedule replaces it", "wheel", PROGRAM, store.shards))
    with bounded_connection(app.connection_for_write, heartbeat=0) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=CONNECT_S)
        app.control.revoke(ids, terminate=True, connection=connection)
