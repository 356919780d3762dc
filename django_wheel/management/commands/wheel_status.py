"""``manage.py wheel_status``: what ``celery wheel status`` shows."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from celery_wheel.errors import WheelError
from celery_wheel.show import report
from django_wheel.project import project_wheel


class Command(BaseCommand):
    help = (
        "Show each shard's holder, offset, pending tasks and levels. Exit code: 0 when every shard has a holder that "
        "was heard of in the last 5 seconds, 3 when one has not, 1 when there is no store to read."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        try:
            text, code = report(project_wheel().status(), as_json=options["json"])
        except (WheelError, ImportError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(text)
        if code:
            sys.exit(code)
