"""django-celery-beat: its table of periodic tasks, through Django, as the wheel reads it where it follows the table.

The import is for leaving django-celery-beat. A wheel that follows its tables needs no import: see docs/periodic.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from celery_wheel.errors import PackageMissing, SettingError
from celery_wheel.operations.schedule_import.foreign import ForeignSchedule, ImportOptions
from celery_wheel.recurring.definition import BROKEN
from celery_wheel.scheduler.sources.django_rows import TableTask, TaskReader


def read(options: ImportOptions) -> Iterator[ForeignSchedule]:
    try:
        from django.apps import apps
        from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
        from django.db import DatabaseError
    except ImportError as error:
        raise PackageMissing("reading django-celery-beat needs Django: pip install django-celery-beat") from error
    try:
        apps.get_app_config("django_celery_beat")
        reader = TaskReader(options.app)
        for page in reader.pages(reader.tasks.all()):
            yield from map(_schedule, page)
    except (AppRegistryNotReady, ImproperlyConfigured, LookupError) as error:
        raise SettingError(
            f"INSTALLED_APPS must have django_celery_beat, got {error}; run this in the project that has it, with "
            "DJANGO_SETTINGS_MODULE"
        ) from error
    except DatabaseError as error:
        raise SettingError(
            f"the tables of django-celery-beat must be readable, got {error}; run: manage.py migrate"
        ) from error


def _schedule(task: TableTask) -> ForeignSchedule:
    document = task.entry.document
    if BROKEN in document:
        return ForeignSchedule.refused(task.name, document[BROKEN])
    return ForeignSchedule(task.name, document, paused=not task.enabled)
