"""celery-wheel in a Django project: ``INSTALLED_APPS += ["django_wheel"]`` and ``CELERY_BEAT_SCHEDULER = "wheel"``.

``from django_wheel import wheel`` is the project's wheel: ``wheel.status()``, ``wheel.pending()``,
``wheel.get(task_id)`` and more, see ``celery_wheel.control``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.control import Wheel

    wheel: Wheel


def __getattr__(name: str) -> Any:
    if name != "wheel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # At the first use: Django imports this package before the project's Celery app exists.
    from django_wheel.project import project_wheel

    return project_wheel()
