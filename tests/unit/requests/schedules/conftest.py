"""An app whose requests for schedules are answered by the real engine, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.recurring import Crontab
from celery_wheel.requests.schedules import Schedules
from celery_wheel.testing import VirtualWheel

NOW = datetime(2030, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)


@pytest.fixture
def schedules(app: Any) -> Iterator[Schedules]:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(NOW)
        yield app.wheel.schedules


@pytest.fixture
def report(schedules: Schedules) -> Schedules:
    """Schedules with one of the name report, at nine each day."""
    schedules.create("report", Crontab("0", "9"), "app.report", queue="mail")
    return schedules
