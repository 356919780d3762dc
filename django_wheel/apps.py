"""The Django app: installs the wheel on the project's Celery app and registers the checks and the admin's pages."""

from __future__ import annotations

from django.apps import AppConfig
from django.db import router
from django.utils.translation import gettext_lazy as _


class DjangoWheelConfig(AppConfig):
    name = "django_wheel"
    verbose_name = _("Celery wheel")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_wheel import checks, tasks  # noqa: F401 - importing registers the checks, and the task of Django 6
        from django_wheel.database import WheelRouter
        from django_wheel.periodic_tasks import answer_for_the_wheel
        from django_wheel.project import install_on_apps

        install_on_apps()
        answer_for_the_wheel()
        if not any(isinstance(one, WheelRouter) for one in router.routers):
            router.routers.insert(0, WheelRouter())  # wheel_store names the database, unknown to the project's routers
