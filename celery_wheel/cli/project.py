"""Django's set-up, for commands that examine the app itself or send with it.

A Django project's app gets the wheel when Django is set up (``django_wheel``). Celery's own command line leaves that to
workers and beat; without it these commands would examine an app that no process of the project has.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from celery_wheel.errors import SettingError


def start_project() -> None:
    """Set Django up in a Django project. Raises SettingError where Django does not start."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE") or find_spec("django") is None:
        return
    import django
    from django.apps import apps
    from django.core.exceptions import ImproperlyConfigured

    if apps.ready:
        return
    try:
        django.setup()
    except (ImproperlyConfigured, ImportError) as error:
        raise SettingError(
            f"DJANGO_SETTINGS_MODULE must be settings that Django starts with, got {error}; `manage.py check` says more"
        ) from error
