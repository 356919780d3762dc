"""The project's Celery app: where it is, and how the wheel is installed on it.

Each app of the process whose ``beat_scheduler`` is "wheel" gets the wheel, now or when it is created. Another one is
left alone: its scheduler would never read the wheel's queue. The project does not change the code that creates its app.
"""

from __future__ import annotations

from typing import Any

from celery import _state, current_app
from django.apps import apps as django_apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from celery_wheel import install
from celery_wheel.conf import Conf, explained_names
from celery_wheel.control import Wheel, wheel_of
from celery_wheel.errors import SettingError
from celery_wheel.values.mask import Mask

#: The values of ``beat_scheduler`` that name the wheel.
NAMES = ("wheel", "celery_wheel.beat:WheelScheduler", "celery_wheel.beat.WheelScheduler")


def install_on_apps() -> None:
    """Install the wheel on every app of this process that uses it, now or when the app is created."""
    for app in _state._get_active_apps():
        _consider(app)
    _state.connect_on_app_finalize(_consider)


def _consider(app: Any) -> None:
    if uses_wheel(app):
        install(app)


def uses_wheel(app: Any) -> bool:
    with explained_names():
        scheduler = app.conf.beat_scheduler
    if isinstance(scheduler, str):
        return scheduler in NAMES
    return f"{getattr(scheduler, '__module__', '')}.{getattr(scheduler, '__name__', '')}" in NAMES


def wheel_app() -> Any:
    """Return the project's app: the current app if it uses the wheel, otherwise another that does; None without one."""
    current = current_app._get_current_object()
    found = [app for app in (current, *_state._get_active_apps()) if uses_wheel(app)]
    return found[0] if found else None


def project_conf() -> Conf | None:
    app = wheel_app()
    return None if app is None else Conf(app)


def masked_text(text: str) -> str:
    """Return the text of an error without the values that ``wheel_mask`` names."""
    conf = project_conf()
    try:
        return text if conf is None else Mask(conf.mask).text(text)
    except SettingError as error:
        return str(error)


def project_wheel() -> Wheel:
    """Return the wheel of the project's app. Raises ImproperlyConfigured if no app uses the wheel."""
    app = wheel_app()
    if app is None:
        raise ImproperlyConfigured(f"no Celery app of this process uses the wheel. {how_to_use_it()}")
    return wheel_of(app)


def how_to_use_it() -> str:
    """Return the remedy where no app uses the wheel, with the name under which the app reads ``beat_scheduler``."""
    if not (django_apps.ready or django_apps.loading):
        return "Django is not set up in this process: call django.setup() first."
    current = current_app._get_current_object()
    apps = [app for app in (current, *_state._get_active_apps()) if app.main != "default"]  # Celery's own, without one
    given = [name for name in dir(settings) if name.endswith(("_BEAT_SCHEDULER", "CELERYBEAT_SCHEDULER"))]
    if not apps:
        if any(getattr(settings, name) in NAMES for name in given):
            return "Import the Celery app in the __init__.py of the project."
        return 'Set CELERY_BEAT_SCHEDULER = "wheel" and import the Celery app in the __init__.py of the project.'
    app = apps[0]
    name = Conf(app).spelling("beat_scheduler")
    other = [one for one in given if one != name]
    if not other:
        return f'Set {name} = "wheel".'
    namespace = (app.conf.prefix or "").rstrip("_")
    how = f'with namespace="{namespace}"' if namespace else "without a namespace"
    return f'Set {name} = "wheel": the Celery app {app.main!r} reads its settings {how}, so {other[0]} has no effect.'
