"""The Django app of the table of ``once``. A file of its own, where Django looks for it."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OnceConfig(AppConfig):
    name = "django_wheel.once"
    label = "django_wheel_once"
    verbose_name = _("Celery wheel, once")
