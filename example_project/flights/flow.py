"""A year and a day of flights through the data pipeline.

::

    the year   timetable ─► schedule --dry-run ─► schedule ─► schedule again: nothing ─► all wait, each at its instant
    the day    its reminders, in compressed time ─► schedule ─► beat and worker ─► executed.jsonl
                                                                └─ meanwhile: forecast and tune, of the year
    after it   archive ─► lateness ─► reconcile: asked against dispatched against executed

The wheel goes by the clock, so the departures of the year wait until they are due, and it is the day that passes in a
minute: by the instants that it asks for, as in ``replay_flights``, but scheduled in bulk.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from django.core.management.base import CommandError

from django_wheel.project import project_wheel
from flights import wheel, year
from flights.instants import elsewhere
from flights.jobs import FIRST, LAST, Jobs
from flights.models import Execution
from flights.plan import Plan
from flights.replay import Run, now_ms
from flights.report import Report
from flights.timetable import day_length_ms, flights_of_the_year, flights_on

GRACE_MS = 30_000
DAY_OF_YEAR = 0.6  #: a job takes for a day about half as long as for the year, however busy the machine is: measured
POLL_S = 0.2
PATIENCE_S = 60  #: without one more that is taken in
HERD = 20  #: at most 28 leave New York in one minute

#: No rule for hours that are skipped or come twice: a flight in one of them is rejected, and counted.
STRICT = ("--gap", "reject", "--fold", "reject")
UNCLEAR = ("local time does not exist", "local time comes twice")

#: Of the words of a forecast: not those about the reminders of the day, which are long past in that year.
HERDS = slice(1, 4)


class Flow:
    """``seconds``: in which the day passes."""

    def __init__(self, jobs: Jobs, day: date, seconds: float) -> None:
        self.jobs = jobs
        self.day = day
        self.seconds = seconds
        self.year = year.year_like_2013(datetime.now(UTC).year)
        self._store = ("--store", jobs.store)
        self._began_ms = now_ms()

    def run(self) -> Report:
        rows = self.write_year()
        load = ("--rows", self.jobs.folder / year.TIMETABLE, "--id", "task_id", "--batch", f"flights-{self.year}")
        load = (*self._store, *load, *STRICT, "--herd", HERD)
        seen = self.jobs.run("schedule", *load, "--dry-run", output="dry-run", told=FIRST)
        first = self.jobs.run("schedule", *load, told=LAST)
        began_ms = now_ms()
        again = self.jobs.run("schedule", *load, output="again", told=LAST)
        lead_ms = round((now_ms() - began_ms) * DAY_OF_YEAR)
        strays = self.taken_in(rows)
        run, second = self.begin_day(lead_ms)
        self.look_ahead()
        self.end_day(run)
        self.jobs.run("archive", *self._store, told=FIRST)
        archive = ("--input", self.jobs.folder / "archive")
        self.jobs.run("lateness", *archive, "--from", self._began_ms, "--objective", f"{year.QUEUE}=1s")
        findings = self.reconcile()
        dispatched = wheel.dispatched_since(self._began_ms) or 0
        return Report(
            scheduled=first["loaded"] + second["loaded"],
            again=again["loaded"],
            rejected=sum(sum(one["rejects"].values()) for one in (first, second)),
            unclear=sum(n for why, n in first["rejects"].items() if why.startswith(UNCLEAR)),
            taken_in=sum(map(waiting, (year.DEPART, year.REMIND))) + dispatched,
            dispatched=dispatched,
            strays=strays,
            day=run.summary(),
            herds=seen["herds"],
            findings=findings,
        )

    def write_year(self) -> int:
        with self.jobs.timed() as lines:
            found = year.write_year(self.jobs.folder, flights_of_the_year(), self.year)
            lines.append(f"{found.rows:,} flights of 2013 are written as departures of {self.year}")
            lines.append(f"{found.rows - found.keys:,} share a key; {found.cancelled:,} were cancelled later on")
        return found.rows

    def taken_in(self, rows: int) -> int:
        """Wait until beat has taken all in; returns how many wait at another instant than the file's UTC says."""
        with self.jobs.timed() as lines:
            wait_for(lambda: waiting(year.DEPART), rows)
            strays = elsewhere(self.jobs.store, self.jobs.folder / year.ASKED, year.DEPART)
            lines.append(f"{rows:,} wait in the wheel; {strays:,} of them at another instant than those of 2013 say")
        return strays

    def begin_day(self, lead_ms: int) -> tuple[Run, dict[str, Any]]:
        """Schedule the reminders of the day; it begins to pass in ``lead_ms``."""
        flights, began_ms = flights_on(self.day), now_ms()
        speed = day_length_ms(self.day) / 1_000 / self.seconds
        plan = Plan(self.day, speed, began_ms + lead_ms)
        run = Run(plan, GRACE_MS, stopped=lambda: False)
        rows = [year.reminder(flight, plan.due_at_ms(flight), f"{began_ms // 1_000:x}") for flight in flights]
        year.write_day(self.jobs.folder, rows)
        run.expect(zip(flights, (row["task_id"] for row in rows), strict=True))
        name = f"{self.day}-{began_ms}"
        load = (*self._store, "--rows", self.jobs.folder / year.DAY, "--id", "task_id", "--batch", name)
        return run, self.jobs.run("schedule", *load, output="schedule-day", told=LAST)

    def look_ahead(self) -> None:
        """While the day passes: what the year will bring, and the wheel that would suit it."""
        span = ("--now", f"{self.year}-01-01", "--to", f"{self.year + 1}-01-02")
        self.jobs.run("forecast", *self._store, *span, "--herd", HERD, "--rate", f"{year.QUEUE}=1/s", told=HERDS)
        self.jobs.run("tune", *self._store, "--table", "pending", told=slice(1))

    def end_day(self, run: Run) -> None:
        with self.jobs.timed() as lines:
            for _ in run.wait():
                pass
            found = run.summary()
            lines.append(f"the rest of {self.day}: {found.executed:,} of {found.scheduled:,} reminders have run")

    def reconcile(self) -> int:
        """How much the auditor finds in what was asked for, what left, and what ran by the tasks' own account."""
        executed = self.jobs.folder / "executed.jsonl"
        with executed.open("w") as log:
            for task_id, at_ms in Execution.objects.values_list("task_id", "executed_at_ms"):
                log.write(json.dumps({"task_id": task_id, "started_ms": at_ms}) + "\n")
        logs = ("--scheduled", self.jobs.folder / year.ASKED, "--executed", executed)
        found = self.jobs.run("reconcile", *self._store, *logs)
        return sum(found["findings"].values()) + sum(found["rejects"].values())


def waiting(task: str) -> int:
    """How many tasks of a name wait in the wheel."""
    return project_wheel().counts().tasks.get(task, 0)


def wait_for(count: Callable[[], int], enough: int) -> None:
    """Raises CommandError where it is not enough, and becomes no more."""
    most, since = -1, time.monotonic()
    while (found := count()) < enough:
        if found > most:
            most, since = found, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            raise CommandError(
                f"{found:,} of {enough:,} tasks were taken in, and for {PATIENCE_S} s no more; see beat.log"
            )
        time.sleep(POLL_S)
