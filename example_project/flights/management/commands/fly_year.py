"""``manage.py fly_year``: a year of flights into the wheel by the data pipeline, and a day of them out of it again."""

import os
from argparse import ArgumentParser
from datetime import date
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from flights.flow import Flow
from flights.jobs import Jobs, prepare
from flights.timetable import TimetableError

#: Spark has so much work at the same time as beat and the worker, and they go first.
NICE = 10


class Command(BaseCommand):
    help = "Schedule the departures of a year, replay the reminders of a day, archive, report and audit."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 11, 3), help="a day of 2013")
        parser.add_argument("--seconds", type=float, default=60.0, help="in which the day passes")

    def handle(self, **options: Any) -> None:
        os.nice(NICE)
        prepare(settings.RUN_DIR)
        jobs = Jobs(settings.RUN_DIR, settings.CELERY_WHEEL_STORE, settings.PROJECT.parent)
        try:
            report = Flow(jobs, options["date"], options["seconds"]).run()
        except TimetableError as error:
            raise CommandError(str(error)) from error
        jobs.tell(*report.lines(), "", "pictures", *(f"  {path}" for path in sorted(settings.RUN_DIR.glob("*/*.png"))))
        if not report.faultless:
            raise CommandError("some tasks were lost, run twice or early, or wait for another instant", returncode=1)
