"""``manage.py wheel_status``: as ``celery wheel status``. A file of its own: Django finds a command by its name."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from celery_wheel.cli.status import report
from celery_wheel.errors import WheelError
from django_wheel.project import project_wheel


class Command(BaseCommand):
    help = (
        "Show the holder, offset, pending tasks and levels of each shard. Exit code: 0 if every shard has a holder "
        "that gave a sign of life in the last 5 seconds, 3 if a shard has none, 1 if the store cannot be read."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        try:
            text, code = report(project_wheel(), as_json=options["json"])
        except (WheelError, ImportError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)
        if code:
            sys.exit(code)
