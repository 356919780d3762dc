"""A run of a plan: schedule every reminder, then count the executions."""

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet

from flights import wheel
from flights.models import Execution, Reminder, Replay
from flights.plan import ReplayPlan
from flights.summary import ReplaySummary, summarise
from flights.tasks import remind
from flights.timetable import Flight

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CHUNK = 50  #: reminders in one insert
POLL_S = 0.2
SETTLE_S = 1.0  #: time to look for duplicates after the last reminder has run


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class ReplayRun:
    """One replay. When ``stopped`` returns True the run ends early, with the summary of that moment."""

    def __init__(self, plan: ReplayPlan, grace_ms: int, stopped: Callable[[], bool]) -> None:
        self.plan = plan
        self.grace_ms = grace_ms
        self.stopped = stopped
        self._replay = Replay.objects.create(date=plan.day, speed=plan.speed, started_at_ms=now_ms())

    def schedule(self, flights: Iterable[Flight]) -> Iterator[None]:
        """Send each reminder with its eta; yields after each."""
        chunk: list[Reminder] = []
        for flight in flights:
            if self.stopped():
                break
            chunk.append(self._send(flight))
            if len(chunk) == CHUNK:
                Reminder.objects.bulk_create(chunk)
                chunk.clear()
            yield
        Reminder.objects.bulk_create(chunk)

    def expect(self, sent: Iterable[tuple[Flight, str]]) -> None:
        """Record reminders that were scheduled by other means, each with its task's id."""
        Reminder.objects.bulk_create(self._reminder(flight, task_id) for flight, task_id in sent)

    def wait(self) -> Iterator[int]:
        """Wait until all reminders have run; yields how many have.

        The wait ends early when, after the last due time, no reminder ran for as long as the grace.
        """
        total = self._reminders().count()
        executed, progress_at_ms = 0, max(self._due().values(), default=0)
        while executed < total and now_ms() < progress_at_ms + self.grace_ms and not self.stopped():
            time.sleep(POLL_S)
            found = self._executions().values("task_id").distinct().count()
            if found > executed:
                executed, progress_at_ms = found, max(progress_at_ms, now_ms())
            yield executed
        if executed == total and not self.stopped():
            time.sleep(SETTLE_S)
            # A reminder runs as soon as the broker has it; the wheel records its dispatch a moment later.
            until_ms = now_ms() + self.grace_ms
            while wheel.next_reminders(1) and now_ms() < until_ms and not self.stopped():
                time.sleep(POLL_S)

    def summary(self, dispatched_beside: int = 0) -> ReplaySummary:
        """Return the summary; ``dispatched_beside`` other tasks were dispatched meanwhile."""
        executions = self._executions().values_list("task_id", "executed_at_ms")
        dispatched = wheel.dispatched_since(self._replay.started_at_ms)
        if dispatched is not None:
            dispatched -= dispatched_beside
        return summarise(self._due(), executions, now_ms(), self.grace_ms, dispatched)

    def _send(self, flight: Flight) -> Reminder:
        due_at_ms = self.plan.due_at_ms(flight)
        sent = remind.apply_async([str(flight)], eta=EPOCH + timedelta(milliseconds=due_at_ms))
        return self._reminder(flight, sent.id)

    def _reminder(self, flight: Flight, task_id: str) -> Reminder:
        return Reminder(
            replay=self._replay,
            task_id=task_id,
            flight=str(flight),
            departs_at_ms=flight.departs_at_ms,
            due_at_ms=self.plan.due_at_ms(flight),
        )

    def _reminders(self) -> QuerySet[Reminder]:
        return Reminder.objects.filter(replay=self._replay)

    def _executions(self) -> QuerySet[Execution]:
        return Execution.objects.filter(task_id__in=self._reminders().values("task_id"))

    def _due(self) -> dict[str, int]:
        return dict(self._reminders().values_list("task_id", "due_at_ms"))
