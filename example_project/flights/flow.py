"""A year and a day of flights through the data pipeline.

::

    the year   timetable ─► schedule ─► all pending at their instants
    the day    its reminders, in compressed time ─► schedule ─► beat and worker ─► executed.jsonl
                                                                └─ meanwhile: schedule the day again: nothing;
                                                                   forecast and tune, of the year
    after it   archive ─► lateness ─► reconcile: scheduled against dispatched against executed

The wheel runs by the clock, so the departures of the year stay pending, and only the day passes in a minute: the etas
of its reminders are compressed, as in ``replay_flights``, but scheduled in bulk.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime

from django.core.management.base import CommandError

from django_wheel.project import project_wheel
from flights import wheel, year
from flights.instants import count_misplaced
from flights.jobs import FIRST, LAST, JobRunner
from flights.models import Execution
from flights.plan import ReplayPlan
from flights.replay import ReplayRun, now_ms
from flights.report import YearReport
from flights.timetable import day_length_ms, flights_of_the_year, flights_on

GRACE_MS = 30_000
#: Time from the load of the day to its begin, as a part of the time of the year's load. The day's load takes as long,
#: and the first reminders are due hours later, which are ten of 60 seconds.
LEAD_OF_YEAR = 0.05
POLL_S = 0.2
PATIENCE_S = 60  #: longest wait for one more accepted task
HERD = 20  #: at most 28 flights leave New York in one minute

#: A flight at a local time that does not exist or occurs twice is rejected, and counted.
STRICT = ("--gap", "reject", "--fold", "reject")
GAP_OR_FOLD = ("local time does not exist", "local time occurs twice")

#: Lines of the forecast without the reminders of the day, which are overdue in that year.
HERDS = slice(1, 4)


class Flow:
    """Runs the year and the day; the day passes in ``seconds``."""

    def __init__(self, jobs: JobRunner, day: date, seconds: float) -> None:
        self.jobs = jobs
        self.day = day
        self.seconds = seconds
        self.year = year.year_like_2013(datetime.now(UTC).year)
        self._store = ("--store", jobs.store)
        self._began_ms = now_ms()

    def run(self) -> YearReport:
        rows = self.write_year()
        load = ("--rows", self.jobs.folder / year.TIMETABLE, "--id", "task_id", "--batch", f"flights-{self.year}")
        began_ms = now_ms()
        first = self.jobs.run("schedule", *self._store, *load, *STRICT, "--herd", HERD)
        lead_ms = round((now_ms() - began_ms) * LEAD_OF_YEAR)
        misplaced = self.wait_until_accepted(rows)
        run, day_load = self.write_day(lead_ms)
        second = self.jobs.run("schedule", *day_load, output="schedule-day", lines=LAST)
        repeated = self.jobs.run("schedule", *day_load, output="again", lines=LAST)
        self.look_ahead()
        self.end_day(run)
        self.jobs.run("archive", *self._store, lines=FIRST)
        archive = ("--input", self.jobs.folder / "archive")
        self.jobs.run("lateness", *archive, "--from", self._began_ms, "--objective", f"{year.QUEUE}=1s")
        findings = self.reconcile()
        dispatched = wheel.dispatched_since(self._began_ms) or 0
        return YearReport(
            scheduled=first["loaded"] + second["loaded"],
            repeated=repeated["loaded"],
            rejected=sum(sum(facts["rejects"].values()) for facts in (first, second)),
            gap_or_fold=sum(n for reason, n in first["rejects"].items() if reason.startswith(GAP_OR_FOLD)),
            accepted=sum(map(count_pending, (year.DEPART, year.REMIND))) + dispatched,
            dispatched=dispatched,
            misplaced=misplaced,
            day=run.summary(),
            herds=first["herds"],
            findings=findings,
        )

    def write_year(self) -> int:
        with self.jobs.timed("the flights of 2013 as tables of tasks") as lines:
            tables = year.write_year(self.jobs.folder, flights_of_the_year(), self.year)
            lines.append(f"{tables.rows:,} flights of 2013 are written as departures of {self.year}")
            lines.append(f"{tables.rows - tables.keys:,} share a key; {tables.cancelled:,} were cancelled later")
        return tables.rows

    def wait_until_accepted(self, rows: int) -> int:
        """Wait until beat has accepted all; return how many are not pending at the instant of the file's UTC."""
        with self.jobs.timed("waiting until beat has accepted the departures") as lines:
            wait_for(lambda: count_pending(year.DEPART), rows)
            misplaced = count_misplaced(self.jobs.store, self.jobs.folder / year.EXPECTED, year.DEPART)
            lines.append(f"{rows:,} are pending; {misplaced:,} of them not at the instant of 2013")
        return misplaced

    def write_day(self, lead_ms: int) -> tuple[ReplayRun, tuple[object, ...]]:
        """Write the reminders of the day, which begins in ``lead_ms``; returns the options of their load, too."""
        flights, began_ms = flights_on(self.day), now_ms()
        speed = day_length_ms(self.day) / 1_000 / self.seconds
        plan = ReplayPlan(self.day, speed, began_ms + lead_ms)
        run = ReplayRun(plan, GRACE_MS, stopped=lambda: False)
        rows = [year.reminder(flight, plan.due_at_ms(flight), f"{began_ms // 1_000:x}") for flight in flights]
        year.write_day(self.jobs.folder, rows)
        run.expect(zip(flights, (row["task_id"] for row in rows), strict=True))
        name = f"{self.day}-{began_ms}"
        return run, (*self._store, "--rows", self.jobs.folder / year.DAY, "--id", "task_id", "--batch", name)

    def look_ahead(self) -> None:
        """Forecast the year and tune the wheel for it, while the day passes."""
        span = ("--now", f"{self.year}-01-01", "--to", f"{self.year + 1}-01-02")
        self.jobs.run("forecast", *self._store, *span, "--herd", HERD, "--rate", f"{year.QUEUE}=1/s", lines=HERDS)
        self.jobs.run("tune", *self._store, "--table", "pending", lines=slice(1))

    def end_day(self, run: ReplayRun) -> None:
        with self.jobs.timed(f"waiting for the rest of {self.day}") as lines:
            for _ in run.wait():
                pass
            summary = run.summary()
            lines.append(f"the rest of {self.day}: {summary.executed:,} of {summary.scheduled:,} reminders have run")

    def reconcile(self) -> int:
        """Audit the scheduled tasks against the dispatched ones and the executions that the tasks recorded."""
        executed = self.jobs.folder / "executed.jsonl"
        with executed.open("w") as log:
            for task_id, at_ms in Execution.objects.values_list("task_id", "executed_at_ms"):
                log.write(json.dumps({"task_id": task_id, "started_ms": at_ms}) + "\n")
        logs = ("--scheduled", self.jobs.folder / year.EXPECTED, "--executed", executed)
        facts = self.jobs.run("reconcile", *self._store, *logs)
        return sum(facts["findings"].values()) + sum(facts["rejects"].values())


def count_pending(task: str) -> int:
    """Return the number of pending tasks of a name."""
    return project_wheel().counts().tasks.get(task, 0)


def wait_for(count: Callable[[], int], enough: int) -> None:
    """Wait until ``count`` is enough. Raises CommandError where it stops growing before."""
    most, since = -1, time.monotonic()
    while (current := count()) < enough:
        if current > most:
            most, since = current, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            raise CommandError(
                f"{current:,} of {enough:,} tasks were accepted, and no more for {PATIENCE_S} s; see beat.log"
            )
        time.sleep(POLL_S)
