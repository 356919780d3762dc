"""``celery wheel doctor`` where history is kept until it is archived."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from celery import Celery

from celery_wheel.operations.doctor import Finding, Grade, Installation, store
from celery_wheel.store import open_store
from celery_wheel.store.model import ORIGIN
from tests.kit.holder import Holder, place

HOUR_MS = 3_600_000


def looked_at(url: str, **settings: object) -> list[Finding]:
    app = Celery("doctor", set_as_current=False, broker="memory://")
    app.conf.update(wheel_store=url, wheel_history_retention=3_600, **settings)
    with Installation(app) as site:
        return [one for one in store.check(site) if one.about == "archive"]


def test_the_doctor_names_the_command_for_history_that_waits_too_long_for_its_archive(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wheel.sqlite3"
    now_ms = int(time.time() * 1_000)
    with closing(open_store(url)) as opened:
        holder = Holder(opened)
        old, young = holder.accept(now_ms - 30 * HOUR_MS, now_ms)
        holder.settle(ORIGIN, place(old), at_ms=now_ms - 30 * HOUR_MS)
        archived = holder.highest_seq
        holder.settle(place(old), place(young), at_ms=now_ms - HOUR_MS // 2)
        assert looked_at(url) == []
        [found] = looked_at(url, wheel_history_archive=True)
        assert found.grade == Grade.WARNING
        assert "1 d 6 h ago, waits for the archive" in found.text, found.text
        assert "run: celery-wheel-pipeline archive --store" in found.remedy
        opened.maintenance.note_archived({0: archived})
        [found] = looked_at(url, wheel_history_archive=True)
        assert (found.grade, found.text) == (Grade.OK, "all history of more than 1 h ago is archived")
