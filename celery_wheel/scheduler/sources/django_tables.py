"""The decision whether the tables of django-celery-beat are followed, and a base scheduler that then reads no row.

A subclass of ``DatabaseScheduler`` that reads other rows, or decides otherwise when they are due, keeps its entries: it
runs as without the wheel.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery_wheel.timing import SystemClock

if TYPE_CHECKING:
    from celery_wheel.scheduler.sources.django_counts import RunCounts
    from celery_wheel.scheduler.sources.django_source import DjangoSource

#: The parts of a DatabaseScheduler that read the rows and decide when they are due.
_OWN = ("Entry", "Model", "Changes", "tick", "is_due", "all_as_schedule", "enabled_models", "enabled_models_qs")


class FollowedTables:
    """Mixed into a DatabaseScheduler: it writes ``beat_schedule`` into its tables as before, and reads no row."""

    @property
    def schedule(self) -> dict[str, Any]:
        return {}


def follows_tables(base: type) -> bool:
    """Whether a class of scheduler runs the rows of django-celery-beat as that package does."""
    module = sys.modules.get("django_celery_beat.schedulers")
    if module is None or not issubclass(base, module.DatabaseScheduler):
        return False
    return all(getattr(base, name, None) is getattr(module.DatabaseScheduler, name, None) for name in _OWN)


def tables_and_counts(app: Any) -> tuple[DjangoSource, RunCounts]:
    from celery_wheel.scheduler.sources.django_counts import RunCounts
    from celery_wheel.scheduler.sources.django_source import DjangoSource

    clock = SystemClock()

    def monotonic_s() -> float:
        return clock.monotonic_ms() / 1_000

    source = DjangoSource(app, clock.now_ms, monotonic_s)
    return source, RunCounts(source, clock.now_ms, monotonic_s)
