"""VirtualWheel: an app's wheel that a test turns. No broker, no waiting, no scheduler process.

::

    advance(minutes=30)   time passes; what falls due runs, in order, also what tasks schedule meanwhile
    advance_to(instant)   the same
    run_due()             no time passes; what is due now runs, and what was sent without a delay
    run_next()            time passes until the next task, which runs
    run_all()             … until nothing waits

Each returns what ran. A task that fails raises its own exception out of the call, unless ``propagate`` is False; what
comes after it is still waiting then, and the next call goes on. A retry is no failure.

Tasks that are sent without a delay run as the app has it: within the call where ``task_always_eager`` is set, else
with the next of the calls above, before time passes. Delays are never eager here.
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
from celery_wheel.testing import borrow, listing
from celery_wheel.testing.clock import VirtualClock, at, ms_of
from celery_wheel.testing.inbound import Inbound
from celery_wheel.testing.post import Post
from celery_wheel.testing.results import MemoryResults
from celery_wheel.testing.seen import Pending, Ran, Skipped, Waiting
from celery_wheel.testing.transport import connection_to
from celery_wheel.testing.worker import Delivery, Worker, revocations_kept_apart

#: Beyond every eta.
END = datetime.max.replace(tzinfo=UTC)

#: So many tasks run in one call at most, where nobody says: one that sends itself anew would run for ever.
LIMIT = 10_000


class VirtualWheel:
    """Use it as a context manager; the app is as it was afterwards.

    Args:
        app: ``celery_wheel.Celery``, or any other: it has a wheel meanwhile.
        propagate: whether a task's exception is raised out of ``advance`` and its like.
        results: "memory", or "app" to keep the app's own result backend.
    """

    def __init__(self, app: Any, *, propagate: bool = True, results: str = "memory") -> None:
        if results not in ("memory", "app"):
            raise ValueError(f"results must be 'memory' or 'app', got {results!r}")
        self.app: Any = getattr(app, "_get_current_object", lambda: app)()
        self.propagate = propagate
        self.ran: list[Ran] = []
        self.skipped: list[Skipped] = []
        self._own_results = results == "memory"
        self._clock = VirtualClock()
        self._left: dict[str, Task] = {}  #: what left the wheel last, by task id
        self._running = False
        self._executing: set[str] = set()  #: ids of tasks that run; in an eager app one may run within another
        self._stack = ExitStack()

    def __enter__(self) -> VirtualWheel:
        app = self.app
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-wheel-")))
            stack.callback(self._clock.thaw)
            stack.enter_context(revocations_kept_apart())
            is_eager, raises = app.conf.task_always_eager, app.conf.task_eager_propagates
            store = folder / "wheel.sqlite3"
            stack.enter_context(
                borrow.settings(
                    app,
                    task_always_eager=False,
                    wheel_enabled=True,
                    wheel_shards=1,
                    wheel_store=f"sqlite:///{store}",
                    wheel_durability="memory",
                )
            )
            stack.enter_context(borrow.installed(app))
            stack.enter_context(borrow.attributes(app, now=self._app_now))
            self._worker = Worker(app, self._clock.now)
            self._inbound = Inbound(app, self._clock, store, self._rejected)
            stack.enter_context(borrow.attributes(app, _wheel_inbox=self._inbound))
            stack.enter_context(borrow.connected(app, connection_to(Post(app, self._inbound, self._worker))))
            stack.callback(self._inbound.close)
            self._wheel = Wheel(app)
            self._wheel.turn = self._inbound.turn
            stack.callback(self._wheel.close)
            stack.enter_context(borrow.attributes(app, _wheel=self._wheel))
            if self._own_results:
                backend = MemoryResults(app, self._run_due_meanwhile, self._describe)
                stack.enter_context(borrow.results(app, backend))
            if is_eager:
                stack.enter_context(borrow.eager(app, lambda task_id: self._run_at_once(task_id, raises)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- time ------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """Virtual time, in UTC."""
        return self._clock.now()

    def _app_now(self) -> datetime:
        return self.now.astimezone(self.app.timezone)

    def freeze(self) -> None:
        """From here to the end of the test ``datetime.now()`` is the wheel's time, everywhere.

        Needs time-machine or freezegun. Where one of them is active already, the wheel moves that one anyway.
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
    ) -> list[Ran]:
        """Let time pass, and run what falls due; ``by`` is a timedelta or a number of seconds.

        Raises WheelError when there is more after ``limit`` tasks.
        """
        more = by if isinstance(by, timedelta) else timedelta(seconds=by or 0)
        delta = more + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if delta < timedelta():
            raise ValueError(f"advance must be given a time of 0 or more, got {delta}; time does not go back")
        return self._run(at(ms_of(self.now)) + delta, limit, propagate)

    def advance_to(self, moment: datetime, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Ran]:
        """Let time pass until an instant, and run what falls due."""
        if moment.tzinfo is None:
            raise ValueError(f"advance_to must be given an aware datetime, got {moment!r}")
        if moment < self._clock.stood:
            raise ValueError(f"advance_to must be given an instant to come, got {moment}; it is {self.now}")
        return self._run(moment, limit, propagate)

    def run_due(self, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Ran]:
        """Run what is due now, and what was sent without a delay. No time passes."""
        return self._run(self.now, limit, propagate)

    def run_next(self, *, propagate: bool | None = None) -> Ran:
        """Let time pass until the next task is due, and run that one alone. Raises LookupError if none waits."""
        ran = self._run(None, None, propagate)
        if not ran:
            raise LookupError("run_next must have a task to run, and none waits")
        return ran[0]

    def run_all(self, *, limit: int = LIMIT, propagate: bool | None = None) -> list[Ran]:
        """Let time pass until nothing waits. Raises WheelError when there is more after ``limit`` tasks."""
        return self._run(END, limit, propagate)

    # -- looking ---------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Pending]:
        """All that was sent and has not run, in the order in which it will."""
        return listing.pending(self.app, self._worker, self._inbound)

    def pending_of(self, task: Any) -> list[Pending]:
        """Those of one task: the task itself, or its name."""
        name = getattr(task, "name", task)
        return [one for one in self.pending if one.task == name]

    def ran_of(self, task: Any) -> list[Ran]:
        """The runs of one task: the task itself, or its name."""
        name = getattr(task, "name", task)
        return [one for one in self.ran if one.task == name]

    def is_waiting(self, result: Any) -> Waiting:
        """Whether a task waits, by its result or its id. Where it does not, a failed assertion says what happened."""
        task_id = getattr(result, "id", result)
        return Waiting(any(one.id == task_id for one in self.pending), self._describe(task_id))

    def _describe(self, task_id: str) -> str:
        known = [one for found in (self.pending, self.skipped[::-1], self.ran[::-1]) for one in found]
        return next((repr(one) for one in known if one.id == task_id), f"nothing was sent with the id {task_id}")

    def __repr__(self) -> str:
        return listing.summary(self.now, self.pending, self.ran, self.skipped)

    # -- commands --------------------------------------------------------------------------------------

    def cancel(self, result: Any, *, reason: str = "") -> str:
        """Cancel a pending task: ``done``, ``already``, ``too_late`` (it was dispatched) or ``unknown``."""
        return str(self._wheel.cancel(result, reason=reason, actor="test"))

    def reschedule(self, result: Any, *, eta: Any = None, countdown: Any = None) -> str:
        """Give a waiting task another time: ``done``, ``too_late`` or ``unknown``."""
        if (eta is None) == (countdown is None):
            raise TypeError("reschedule must be given either eta or countdown")
        return str(self._wheel.reschedule(result, eta=eta, countdown=countdown, actor="test"))

    def run_now(self, result: Any) -> str:
        """Make a waiting task due now, so that it is the next to run: ``done``, ``too_late`` or ``unknown``."""
        return str(self._wheel.run_now(result, actor="test"))

    # -- running ---------------------------------------------------------------------------------------

    def _run(self, until: datetime | None, limit: int | None, propagate: bool | None) -> list[Ran]:
        """Run what is due up to an instant; the next task alone where there is none."""
        if self._running:
            raise RuntimeError("tasks run already: a task must not advance the wheel that runs it")
        if until is not None and until != END:
            until = at(ms_of(until))  # as a task's eta is, so that the task of this very instant is among them
        ran: list[Ran] = []
        self._running = True
        try:
            with self._clock.held():
                while (until is not None or not ran) and (delivery := self._next(until)) is not None:
                    if len(ran) == limit:
                        self._worker.ready.appendleft(delivery)
                        raise WheelError(self._too_many(len(ran), delivery))
                    ran += self._execute(delivery, self.propagate if propagate is None else propagate)
                if until not in (None, END):
                    self._clock.jump(until)
        finally:
            self._running = False
        return ran

    def _too_many(self, count: int, delivery: Delivery) -> str:
        return (
            f"{count:,} tasks ran and there are more, a {delivery.task} is the next; does one send itself for ever? "
            "Give a nearer instant, or a higher limit"
        )

    def _next(self, until: datetime | None) -> Delivery | None:
        """The next delivery to run, at its own time; None when there is none up to ``until``."""
        worker, inbound = self._worker, self._inbound
        while not worker.ready:
            first, held_until = inbound.next(), worker.next_due()
            moment = min((one for one in (held_until, first and at(first[1])) if one), default=None)
            if moment is None or (until is not None and moment > max(until, self.now)):
                return None
            self._clock.jump(moment)
            worker.release()
            if first is not None and at(first[1]) <= self.now:
                self._left.update({one.task_id: one for one in inbound.step(first[0])})
        return worker.ready.popleft()

    def _execute(self, delivery: Delivery, propagate: bool) -> list[Ran]:
        """Run a delivery; what came of it is in ``ran`` or in ``skipped``."""
        began, left = self.now, self._left.pop(delivery.id, None)
        self._executing.add(delivery.id)
        try:
            trace = self._worker.run(delivery)
        finally:
            self._executing.discard(delivery.id)
        if trace.state is None:
            self.skipped.append(Skipped(delivery.task, delivery.id, began, trace.reason))
            return []
        args, kwargs = delivery.call()
        failed = trace.state != "SUCCESS"
        ran = Ran(
            delivery.task,
            args,
            kwargs,
            delivery.id,
            delivery.queue,
            at=began,
            state=trace.state,
            result=None if failed else trace.value,
            exception=trace.value if failed else None,
            eta=at(left.eta_ms) if left else delivery.eta,
            key=left.key if left else None,
            retries=trace.retries,
        )
        self.ran.append(ran)
        if propagate and trace.state == "FAILURE" and isinstance(trace.value, BaseException):
            raise trace.value
        return [ran]

    def _run_at_once(self, task_id: str, propagate: bool) -> None:
        """For an eager app: what was just sent runs now, if it need not wait.

        A retry is sent by the try before it, and runs when that has ended.
        """
        while task_id not in self._executing and (delivery := self._worker.take(task_id)) is not None:
            self._execute(delivery, propagate)

    def _run_due_meanwhile(self) -> None:
        """Somebody waits for a result; what fails is in its own result."""
        if not self._running:
            self._run(self.now, LIMIT, propagate=False)

    def _rejected(self, headers: dict[str, Any], reason: str) -> None:
        # Protocol 1 has both in the body, which nobody opens for this.
        task, task_id = str(headers.get("task", "a task")), str(headers.get("id", ""))
        self.skipped.append(Skipped(task, task_id, self.now, reason))
