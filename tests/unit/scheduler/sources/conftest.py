"""Followers whose commands are carried out by the real engine, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from celery_wheel import Celery
from celery_wheel.scheduler.sources import EntryChanges, SourceEntry
from celery_wheel.scheduler.sources.sources import Follower
from celery_wheel.store.schedule_model import BEAT, Schedule
from celery_wheel.testing import VirtualWheel

NOW = datetime(2030, 11, 20, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)


class FollowerRig:
    """A follower of one source, and the schedules of the store."""

    def __init__(self, app: Any, wheel: VirtualWheel, source: str = BEAT) -> None:
        self.app = app
        self.wheel = wheel
        self.asked: list[tuple[str, list[str]]] = []
        self.follower = self.new(source)

    def new(self, source: str = BEAT) -> Follower:
        """Return a follower that knows nothing yet, as after a restart."""

        def ask(do: str, names: Any, options: dict[str, Any]) -> Any:
            self.asked.append((do, sorted(names)))
            how: Any = {"actor": "beat", "reason": "test"}
            return self.app.wheel.schedules.change(do, names, how=how, source=source, **options)

        return Follower(source, lambda: self.app.wheel.store, ask, lambda: NOW_MS, hands_back=True)

    def follow(self, **entries: SourceEntry) -> None:
        """Follow entries that are all that there are."""
        self.follower.follow(EntryChanges(dict(entries), is_whole=True))

    def schedule(self, name: str) -> Schedule | None:
        found = self.app.wheel.store.browse.schedule(name)
        return None if found is None else found.schedule

    def stored(self, name: str) -> Schedule:
        found = self.schedule(name)
        assert found is not None, f"there is no schedule {name}"
        return found

    def document(self, name: str) -> Any:
        return json.loads(self.stored(name).definition)


def entry(every_ms: int = 60_000, anchor_ms: int = NOW_MS, after_ms: int | None = None, **more: Any) -> SourceEntry:
    spec = {"kind": "interval", "every_ms": every_ms, "anchor_ms": anchor_ms}
    document = {"recurrence": {"kind": "recurrence", "spec": spec}, "task": "app.report", **more}
    return SourceEntry(document, after_ms)


@pytest.fixture
def app() -> Any:
    return Celery("shop", broker="memory://", timezone="Europe/Paris", set_as_current=False)


@pytest.fixture
def make_rig(app: Any) -> Iterator[Callable[..., FollowerRig]]:
    with VirtualWheel(app) as wheel:
        wheel.advance_to(NOW)
        wheel.freeze()
        yield lambda source=BEAT: FollowerRig(app, wheel, source)


@pytest.fixture
def rig(make_rig: Callable[..., FollowerRig]) -> FollowerRig:
    return make_rig()
