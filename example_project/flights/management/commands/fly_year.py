"""``manage.py fly_year``: schedule a year of flights by the data pipeline, and replay a day of them."""

import os
from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from flights.flow import Flow
from flights.jobs import JobRunner, prepare
from flights.timetable import TimetableError

#: Beat and the worker take precedence over Spark, which works at the same time; 10 starved it on a busy machine.
NICE = 5


class Command(BaseCommand):
    help = "Schedule the departures of a year, replay the reminders of a day, archive, report and audit."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 11, 3), help="Day of 2013 to replay.")
        parser.add_argument("--seconds", type=float, default=60.0, help="Length of the replay in seconds.")

    def handle(self, **options: Any) -> None:
        os.nice(NICE)
        prepare(settings.RUN_DIR)
        jobs = JobRunner(settings.RUN_DIR, settings.CELERY_WHEEL_STORE, settings.PROJECT.parent)
        try:
            report = Flow(jobs, options["date"], options["seconds"]).run()
        except TimetableError as error:
            raise CommandError(str(error)) from error
        jobs.print(*report.lines(), "", "pictures", *(f"  {path}" for path in sorted(settings.RUN_DIR.glob("*/*.png"))))
        if not report.faultless:
            raise CommandError(
                "some tasks were lost, ran twice or early, or are pending at a wrong instant", returncode=1
            )
