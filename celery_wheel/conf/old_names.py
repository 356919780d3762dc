"""Celery's old names of settings, like ``CELERY_RESULT_BACKEND``, which it does not let mix with the new ones.

::

    CELERY_RESULT_BACKEND, CELERY_TASK_SERIALIZER, beat_scheduler   ImproperlyConfigured, at the first use of the app
    CELERY_RESULT_BACKEND, CELERY_TASK_SERIALIZER, CELERYBEAT_SCHEDULER, wheel_store                  works

Celery counts the names of each kind, and proposes to rename those of the smaller: so a project that adds the two lines
of the wheel to old names may be told to rename everything that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery.exceptions import ImproperlyConfigured

from celery_wheel.conf import OLD_BEAT_SCHEDULER

#: How Celery's two texts begin.
MIXED = "Cannot mix new "


@contextmanager
def explained_names() -> Iterator[None]:
    """Add the name of the wheel's line to Celery's error about a mixture."""
    try:
        yield
    except ImproperlyConfigured as error:
        if not str(error).strip().startswith(MIXED):
            raise
        raise ImproperlyConfigured(
            f'{str(error).rstrip()}\n\nWith old names, the scheduler is {OLD_BEAT_SCHEDULER} = "wheel" and not '
            "beat_scheduler. Settings of the wheel have no old names: they are wheel_store or WHEEL_STORE.\n"
        ) from error
