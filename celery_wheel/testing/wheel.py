"""VirtualWheel: an app's wheel in virtual time, without broker, scheduler process and waiting.

``advance``, ``run_due``, ``run_next`` and ``run_all`` return the executions. The exception of a failed task leaves the
call, unless ``propagate`` is False; later tasks are still pending then, and the next call continues with them. A retry
is no failure.

Tasks without a delay run within the call where the app's ``task_always_eager`` is set, otherwise with the next of the
calls above, before time passes. Delayed tasks are never eager here.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery_wheel.control import Wheel
from celery_wheel.errors import WheelError
from celery_wheel.store.ports.pages import Task
from celery_wheel.testing import patches, records
from celery_wheel.testing.clock import VirtualClock
from celery_wheel.testing.engine import SteppedEngine
from celery_wheel.testing.patches import MemoryResults
from celery_wheel.testing.records import Execution, IsPending, PendingTask, SkippedMessage
from celery_wheel.testing.worker import MessageSink, QueuedTask, Worker, connection_to, isolated_revocations
from celery_wheel.values.instants import ceil_ms, utc
from celery_wheel.worker.run_reports import reports_of

#: Beyond every eta.
END = datetime.max.replace(tzinfo=UTC)

#: Default limit of the tasks in one call: a task that sends itself would run for ever.
LIMIT = 10_000


class VirtualWheel:
    """A context manager; its end restores the app.

    Args:
        app: a ``celery_wheel.Celery``, or another Celery app, which gets a wheel meanwhile.
        propagate: whether ``advance`` and its like raise a task's exception.
        results: "memory", or "app" to keep the app's own result backend.
    """

    def __init__(self, app: Any, *, propagate: bool = True, results: str = "memory") -> None:
        if results not in ("memory", "app"):
            raise ValueError(f"results must be 'memory' or 'app', got {results!r}")
        self.app: Any = getattr(app, "_get_current_object", lambda: app)()
        self.propagate = propagate
        self.ran: list[Execution] = []
        self.skipped: list[SkippedMessage] = []
        self._own_results = results == "memory"
        self._clock = VirtualClock()
        self._dispatched: dict[str, Task] = {}  #: task id → the task as the wheel dispatched it last
        self._running = False
        self._executing: set[str] = set()  #: ids of running tasks; in an eager app one may run within another
        self._stack = ExitStack()

    def __enter__(self) -> VirtualWheel:
        app = self.app
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-wheel-")))
            stack.callback(self._clock.thaw)
            stack.enter_context(isolated_revocations())
            is_eager, raises = app.conf.task_always_eager, app.conf.task_eager_propagates
            store = folder / "wheel.sqlite3"
            stack.enter_context(
                patches.settings(
                    app,
                    task_always_eager=False,
                    wheel_enabled=True,
                    wheel_shards=1,
                    wheel_store=f"sqlite:///{store}",
                    wheel_durability="memory",
                )
            )
            stack.enter_context(patches.installed(app))
            stack.enter_context(patches.attributes(app, now=lambda: self.now.astimezone(app.timezone)))
            self._worker = Worker(app, self._clock.now)
            self._engine = SteppedEngine(app, self._clock, store, self._rejected)
            stack.enter_context(patches.attributes(app, _wheel_inbox=self._engine))
            stack.enter_context(patches.connected(app, connection_to(MessageSink(app, self._engine, self._worker))))
            stack.callback(self._engine.close)
            self._wheel = Wheel(app)
            self._wheel.turn = self._engine.turn
            stack.callback(self._wheel.close)
            stack.enter_context(patches.attributes(app, _wheel=self._wheel))
            if self._own_results:
                backend = MemoryResults(app, self._run_due_meanwhile, self._describe)
                stack.enter_context(patches.attributes(app, _backend_cache=backend))
            if is_eager:
                stack.enter_context(patches.eager(app, lambda task_id: self._run_at_once(task_id, raises)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def now(self) -> datetime:
        """Virtual time, in UTC."""
        return self._clock.now()

    def freeze(self) -> None:
        """Make ``datetime.now()`` the wheel's time, everywhere, until the end of the test.

        Needs time-machine or freezegun. A freezer that is active already moves with the wheel anyway.
        """
        self._clock.freeze()

    def advance(
        self,
        by: timedelta | float | None = None,
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        limit: int = LIMIT,
        propagate: bool | None = None,
    ) -> list[Execution]:
        """Let time pass, and run tasks that fall due; ``by`` is a timedelta or a number of seconds.

        Raises WheelError when there are more than ``limit`` tasks.
        """
        more = by if isinstance(by, timedelta) else timedelta(seconds=by or 0)
        delta = more + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if delta < timedelta():
            raise ValueError(f"advance needs a time of 0 or more, got {delta}; time does not go back")
        return self._run(utc(ceil_ms(self.now)) + delta, limit, propagate)

    def advance_to(self, moment: datetime, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Execution]:
        """Let time pass until an instant, and run tasks that fall due."""
        if moment.tzinfo is None:
            raise ValueError(f"advance_to needs an aware datetime, got {moment!r}")
        if moment < self._clock.last_stop:
            raise ValueError(f"advance_to needs an instant to come, got {moment}; it is {self.now}")
        return self._run(moment, limit, propagate)

    def run_due(self, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Execution]:
        """Run tasks that are due now, and those without a delay. No time passes."""
        return self._run(self.now, limit, propagate)

    def run_next(self, *, propagate: bool | None = None) -> Execution:
        """Let time pass until the next task is due, and run only that task. Raises LookupError without one."""
        ran = self._run(None, None, propagate)
        if not ran:
            raise LookupError("run_next needs a pending task, and there is none")
        return ran[0]

    def run_all(self, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Execution]:
        """Let time pass until no task is pending. Raises WheelError when there are more than ``limit`` tasks."""
        return self._run(END, limit, propagate)

    @property
    def pending(self) -> list[PendingTask]:
        """All tasks that were sent and have not run, in the order of execution."""
        return records.pending(self.app, self._worker, self._engine)

    def pending_of(self, task: Any) -> list[PendingTask]:
        """Return the pending tasks of a task or a task name."""
        name = getattr(task, "name", task)
        return [pending for pending in self.pending if pending.task == name]

    def ran_of(self, task: Any) -> list[Execution]:
        """Return the executions of a task or a task name."""
        name = getattr(task, "name", task)
        return [ran for ran in self.ran if ran.task == name]

    def is_pending(self, result: Any) -> IsPending:
        """Whether a task is pending, by its result or id. If it is not, a failed assertion shows what happened."""
        task_id = getattr(result, "id", result)
        return IsPending(any(task.id == task_id for task in self.pending), self._describe(task_id))

    def _describe(self, task_id: str) -> str:
        known: list[Any] = [*self.pending, *self.skipped[::-1], *self.ran[::-1]]
        return next((repr(record) for record in known if record.id == task_id), f"no task was sent with id {task_id}")

    def __repr__(self) -> str:
        return records.summary(self.now, self.pending, self.ran, self.skipped)

    def cancel(self, result: Any, *, reason: str = "") -> str:
        """Cancel a pending task: ``done``, ``already``, ``too_late`` (it was dispatched) or ``unknown``."""
        return str(self._wheel.cancel(result, reason=reason, actor="test"))

    def reschedule(self, result: Any, *, eta: Any = None, countdown: Any = None) -> str:
        """Change the eta of a pending task: ``done``, ``too_late`` or ``unknown``."""
        return str(self._wheel.reschedule(result, eta=eta, countdown=countdown, actor="test"))

    def run_now(self, result: Any) -> str:
        """Make a pending task due now, so that it runs next: ``done``, ``too_late`` or ``unknown``."""
        return str(self._wheel.run_now(result, actor="test"))

    def _run(self, until: datetime | None, limit: int | None, propagate: bool | None) -> list[Execution]:
        """Run the tasks that are due up to an instant; only the next task where ``until`` is None."""
        if self._running:
            raise RuntimeError("tasks run already: a task must not advance the wheel that runs it")
        if until is not None and until != END:
            until = utc(ceil_ms(until))  # rounded like a task's eta, so that a task of this very instant runs
        ran: list[Execution] = []
        self._running = True
        try:
            with self._clock.stopped():
                while (until is not None or not ran) and (delivery := self._next(until)) is not None:
                    if len(ran) == limit:
                        self._worker.ready.appendleft(delivery)
                        raise WheelError(
                            f"{len(ran):,} tasks ran and there are more, a {delivery.task} is the next; does a task "
                            "send itself for ever? Choose a nearer instant, or a higher limit"
                        )
                    ran += self._execute(delivery, self.propagate if propagate is None else propagate)
                if until not in (None, END):
                    self._clock.jump(until)
        finally:
            self._running = False
        return ran

    def _next(self, until: datetime | None) -> QueuedTask | None:
        """Return the next delivery to run, at its own instant; None if there is none up to ``until``."""
        worker, engine = self._worker, self._engine
        while not worker.ready:
            first, worker_due = engine.next(), worker.next_due()
            moment = min((due for due in (worker_due, first and utc(first[1])) if due), default=None)
            if moment is None or (until is not None and moment > max(until, self.now)):
                return None
            self._clock.jump(moment)
            worker.release()
            if first is None or utc(first[1]) > self.now:
                continue
            if first[0] is None:
                engine.make_occurrences()
            else:
                self._dispatched.update({task.task_id: task for task in engine.step(first[0])})
        return worker.ready.popleft()

    def _execute(self, delivery: QueuedTask, propagate: bool) -> list[Execution]:
        began = self.now
        self._executing.add(delivery.id)
        try:
            traces = self._worker.run(delivery)
        finally:
            self._executing.discard(delivery.id)
        ran = list[Execution]()
        for trace in traces:
            task = self._dispatched.pop(trace.id, None)
            if trace.state is None:
                self.skipped.append(SkippedMessage(delivery.task, trace.id, began, trace.reason))
                continue
            for report in reports_of(delivery.message.headers or {}, retried=trace.state == "RETRY"):
                self._engine.end_run(report)
            failed = trace.state != "SUCCESS"
            ran.append(
                Execution(
                    delivery.task,
                    trace.args,
                    trace.kwargs,
                    trace.id,
                    delivery.queue,
                    at=began,
                    state=trace.state,
                    result=None if failed else trace.value,
                    exception=trace.value if failed else None,
                    eta=utc(task.eta_ms) if task else delivery.eta,
                    key=task.key if task else None,
                    retries=trace.retries,
                )
            )
        self.ran += ran
        for one in ran:
            if propagate and one.state == "FAILURE" and isinstance(one.exception, BaseException):
                raise one.exception
        return ran

    def _run_at_once(self, task_id: str, propagate: bool) -> None:
        """Run a task that an eager app has just sent; a retry runs after the try that sent it has ended."""
        while task_id not in self._executing and (delivery := self._worker.take(task_id)) is not None:
            self._execute(delivery, propagate)

    def _run_due_meanwhile(self) -> None:
        """Run due tasks while code waits for a result; failures are in the results."""
        if not self._running:
            self._run(self.now, LIMIT, propagate=False)

    def _rejected(self, headers: dict[str, Any], reason: str) -> None:
        # Protocol 1 has both in the body, which is not worth parsing here.
        task, task_id = str(headers.get("task", "a task")), str(headers.get("id", ""))
        self.skipped.append(SkippedMessage(task, task_id, self.now, reason))
