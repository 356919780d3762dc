"""The admin of django-celery-beat beside the wheel.

Its list of periodic tasks asks whether the configured scheduler reads its tables, and imports the scheduler by its
path. "wheel" is not a path, and the page would fail: the question is answered here, for the wheel's base scheduler.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from django.apps import apps

from django_wheel.project import NAMES, project_conf


def answer_for_the_wheel() -> None:
    if not apps.is_installed("django_celery_beat"):
        return
    from django_celery_beat import utils

    own = utils.is_database_scheduler

    @wraps(own)
    def is_database_scheduler(scheduler: Any) -> Any:
        conf = project_conf() if scheduler in NAMES else None
        return own(scheduler if conf is None else conf.base_scheduler)

    # The admin module, if it is imported already, has the function by its name.
    for module in (utils, sys.modules.get("django_celery_beat.admin")):
        if getattr(module, "is_database_scheduler", None) is own:
            module.is_database_scheduler = is_database_scheduler  # type: ignore[union-attr]
