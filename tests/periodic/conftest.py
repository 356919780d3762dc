"""The site with django-celery-beat; its tables are followed within the test's own transaction."""

import os
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.utils import timezone

if os.environ.get("SITE_APPS") != "django_celery_beat":
    pytest.skip("needs SITE_APPS=django_celery_beat and --ds, as the Makefile says it", allow_module_level=True)

from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from celery_wheel.scheduler.sources import EntryChanges
from celery_wheel.scheduler.sources.django_source import DjangoSource
from celery_wheel.timing import SystemClock
from tests.kit.site import celery_app

Make = Callable[..., Any]


class Tables:
    """A source whose clock the test moves."""

    def __init__(self) -> None:
        self.ahead_ms = 0
        self.monotonic_s = 0.0
        self.source = DjangoSource(celery_app, self.now_ms, lambda: self.monotonic_s)

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms

    def read(self) -> EntryChanges:
        """Return what has changed, over all looks up to one that has nothing more, each of which is followed."""
        found = EntryChanges()
        for turn in count():
            changes = self.source.read()
            if changes is not None:
                found.all_names = changes.all_names or found.all_names
                found.entries |= changes.entries
                found.gone += changes.gone
                found.retimed += changes.retimed
                self.source.followed()
            elif turn and not self.source.has_more:  # a change that nothing explains is read at the second look
                return found
        raise AssertionError


@pytest.fixture
def tables(db: None, monkeypatch: pytest.MonkeyPatch) -> Tables:
    monkeypatch.setattr("django.db.close_old_connections", lambda: None)  # the test's own transaction
    return Tables()


@pytest.fixture
def interval(db: None) -> Any:
    return IntervalSchedule.objects.create(every=10, period="minutes")


@pytest.fixture
def nine(db: None) -> Any:
    return CrontabSchedule.objects.create(minute="0", hour="9", timezone="Europe/Paris")


@pytest.fixture
def task(interval: Any) -> Callable[..., Any]:
    def make(name: str, **values: Any) -> Any:
        schedule = {} if {"crontab", "solar", "clocked"} & values.keys() else {"interval": interval}
        return PeriodicTask.objects.create(name=name, task="site.nothing", **{**schedule, **values})

    return make


def edit(of: str, **values: Any) -> None:
    found = PeriodicTask.objects.get(name=of)
    for field, value in values.items():
        setattr(found, field, value)
    found.save()


def age() -> None:
    PeriodicTask.objects.update(date_changed=timezone.now() - timedelta(days=1))
