"""``celery wheel schedules …``: read and change recurring schedules, as ``app.wheel.schedules`` does."""

from __future__ import annotations

# Each module adds its commands to the group.
from celery_wheel.cli.schedules import define, group, imports, reading  # noqa: F401
from celery_wheel.cli.schedules.group import schedules

__all__ = ["schedules"]
