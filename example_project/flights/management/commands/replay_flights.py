"""``manage.py replay_flights``: replay a day of real flights in compressed time, with ``apply_async(eta=…)``."""

import json
import signal
import threading
import time
from argparse import ArgumentParser, BooleanOptionalAction
from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flights.plan import ReplayPlan
from flights.replay import ReplayRun, now_ms
from flights.reports import Reports
from flights.timetable import TimetableError, flights_on


class Command(BaseCommand):
    help = "Schedule a reminder 45 minutes before each flight of a day of 2013, wait, and count the executions."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 7, 10), help="Day of 2013 to replay.")
        parser.add_argument(
            "--speed", type=float, default=600.0, help="Speed; with 600 (default) a day lasts 144 seconds."
        )
        parser.add_argument("--lead", type=float, default=2.0, help="Seconds before the day begins, for scheduling.")
        parser.add_argument("--limit", type=int, help="Largest number of flights.")
        parser.add_argument(
            "--wait", action=BooleanOptionalAction, default=True, help="Wait until all reminders have run."
        )
        parser.add_argument(
            "--grace", type=float, default=30.0, help="Seconds after which an overdue reminder is lost."
        )
        parser.add_argument("--reports", action="store_true", help="Also create the recurring reports.")
        parser.add_argument("--json", action="store_true", help="Print the summary as JSON.")

    def handle(self, **options: Any) -> None:
        stop = _stop_on_signals()
        try:
            flights = flights_on(options["date"])[: options["limit"]]
            plan = ReplayPlan(options["date"], options["speed"], now_ms() + round(options["lead"] * 1000))
        except TimetableError as error:
            raise CommandError(str(error)) from error
        run = ReplayRun(plan, round(options["grace"] * 1000), stop.is_set)
        reports = Reports(plan, now_ms()) if options["reports"] else None
        if reports is not None:
            reports.create()
        with _progress() as progress:
            bar = progress.add_task("scheduled", total=len(flights))
            for _ in run.schedule(flights):
                progress.advance(bar)
            if options["wait"] and not stop.is_set():
                bar = progress.add_task("executed", total=len(flights))
                first = True
                for executed in run.wait():
                    progress.update(bar, completed=executed)
                    if executed and first:
                        progress.console.print(f"{time.strftime('%H:%M:%S')} the first reminder was executed")
                        first = False
        if reports is not None:
            reports.end()
        summary = run.summary(reports.dispatched() if reports is not None else 0)
        self.stdout.write(json.dumps(summary.as_dict()) if options["json"] else "\n".join(["", *summary.lines()]))
        if reports is not None and not options["json"]:
            self.stdout.write("\n".join(["", "Recurring reports", *reports.lines()]))
        if not summary.faultless:
            raise CommandError("some reminders were lost, duplicated or early", returncode=1)


def _stop_on_signals() -> threading.Event:
    """End the replay early at Ctrl-C, with the summary of that moment."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    return stop


def _progress() -> Progress:
    columns = (TextColumn("{task.description:<9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))
