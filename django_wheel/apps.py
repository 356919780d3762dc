"""The Django app: installs the wheel on the project's Celery app and registers the checks and the admin's pages."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from django.apps import AppConfig, apps
from django.db import router
from django.utils.translation import gettext_lazy as _

from django_wheel.project import NAMES, install_on_apps, project_conf


class DjangoWheelConfig(AppConfig):
    name = "django_wheel"
    verbose_name = _("Celery wheel")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_wheel import checks, tasks  # noqa: F401 - importing registers the checks, and the task of Django 6
        from django_wheel.database import WheelRouter

        install_on_apps()
        answer_for_the_wheel()
        if not any(isinstance(one, WheelRouter) for one in router.routers):
            router.routers.insert(0, WheelRouter())  # wheel_store names the database, unknown to the project's routers


def answer_for_the_wheel() -> None:
    """Tell the admin of django-celery-beat whether the wheel's base scheduler reads its tables.

    Its list of periodic tasks asks, and imports the scheduler by its path: "wheel" is no path, and the page would fail.
    """
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
