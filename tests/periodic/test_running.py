"""A real Beat with django-celery-beat on a real Redis: rows are followed within a second, and run counts come back."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connections
from django.utils import timezone
from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask

from celery_wheel.store import open_store
from celery_wheel.store.schedule_model import Schedule, ScheduleCriteria
from tests.kit.patience import patience, wait_until
from tests.kit.servers.redis import RedisServer
from tests.kit.site.running import RunningSite, migrated

pytestmark = pytest.mark.slow

#: An edit is live within a second: POLL_S and the rounds of the engine, on a machine that has time for them.
LIVE_S = 1.0


class Site:
    """The site's processes; this process edits the same database as its web server would."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.store_url = f"sqlite:///{folder}/wheel.sqlite3"
        more = {"SITE_APPS": "django_celery_beat", "SITE_STORE": self.store_url}
        migrated(folder, "", **more)
        self.running = RunningSite(folder, "", broker, **more)
        self.redis = redis.Redis.from_url(broker)

    def sent(self, name: str) -> list[dict[str, Any]]:
        found = (json.loads(raw)["headers"] for raw in reversed(self.redis.lrange("celery", 0, -1)))
        return [one for one in found if one.get("periodic_task_name") == name]

    def schedules(self) -> dict[str, Schedule]:
        store = open_store(self.store_url, shards=None, create=False)
        try:
            page = store.browse.schedules(ScheduleCriteria(source="django-celery-beat"))
            return {one.name: one for one in page.items}
        finally:
            store.close()

    def is_live(self, state: Callable[[dict[str, Schedule]], object], edit: str) -> float:
        """Wait until the store's schedules are so; returns the seconds that it took."""
        began_s = time.monotonic()
        wait_until(lambda: state(self.schedules()), f"the edit is live: {edit}", every_s=0.02)
        return time.monotonic() - began_s


@pytest.fixture
def site(tmp_path: Path, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    default = connections["default"]
    with RedisServer(tmp_path / "redis") as server, django_db_blocker.unblock():
        found = Site(tmp_path, server.url)
        # The test database is in memory, and would end with its last connection.
        monkeypatch.setattr(default, "connection", None)
        monkeypatch.setitem(default.settings_dict, "NAME", str(tmp_path / "site.sqlite3"))
        yield found
        found.running.close()
        found.redis.close()
        default.close()


def test_rows_are_followed_edits_are_live_and_runs_are_counted(site: Site) -> None:
    second = IntervalSchedule.objects.create(every=1, period="seconds")
    nine = CrontabSchedule.objects.create(minute="0", hour="9", timezone="Asia/Tokyo")
    fast = PeriodicTask.objects.create(name="fast", task="site.nothing", interval=second)
    PeriodicTask.objects.create(name="nine", task="site.nothing", crontab=nine)
    broken = PeriodicTask.objects.create(name="broken", task="site.nothing", crontab=nine, args="[1,")
    soon = ClockedSchedule.objects.create(clocked_time=timezone.now() + timedelta(seconds=1))
    once = PeriodicTask.objects.create(name="once", task="site.nothing", clocked=soon, one_off=True)
    site.running.beat()
    wait_until(lambda: len(site.sent("fast")) >= 3 and len(site.sent("once")) == 1, "the tasks are sent")
    found = site.schedules()
    assert found["broken"].broken
    assert found["broken"].note.startswith("args must be JSON")
    assert "celery.backend_cleanup" in found, "Celery's own entry is a row, and so a schedule"

    took = []
    fast.args, fast.enabled = "[7]", True
    fast.save()
    took.append(site.is_live(lambda now: '"args":[7]' in now["fast"].definition, "saved"))
    nine.hour = "10"
    nine.save()
    took.append(site.is_live(lambda now: '"hour":"10"' in now["nine"].definition, "schedule"))
    broken.args = "[]"
    broken.save()
    took.append(site.is_live(lambda now: not now["broken"].broken, "mended"))
    PeriodicTask.objects.get(name="nine").delete()
    took.append(site.is_live(lambda now: "nine" not in now, "deleted"))
    assert sorted(took)[1] < max(LIVE_S, patience(LIVE_S)), took

    def counted() -> bool:
        fast.refresh_from_db()
        once.refresh_from_db()
        return fast.total_run_count >= 3 and fast.last_run_at is not None and not once.enabled

    wait_until(counted, "the runs are counted")
    assert once.total_run_count == 0
    wait_until(lambda: "once" not in site.schedules(), "the one-off schedule is over")
    site.running["beat"].kill()
    before = fast.total_run_count
    site.running.beat()
    wait_until(lambda: counted() and fast.total_run_count >= before + 3, "the next holder goes on")
    fast.enabled = False
    fast.save()
    site.is_live(lambda now: "fast" not in now, "disabled")
    instants = Counter(one["wheel_occurrence"]["scheduled_for"] for one in site.sent("fast"))
    assert max(instants.values()) == 1
    assert len(site.sent("once")) == 1


def test_a_switch_from_the_base_scheduler_to_the_wheel_and_back_sends_no_instant_again(site: Site) -> None:
    interval = IntervalSchedule.objects.create(every=4, period="seconds")
    slow = PeriodicTask.objects.create(name="slow", task="site.nothing", interval=interval)
    counts, began_s = [], time.monotonic()
    for who in ("base", "wheel", "base"):
        site.running.environment["SITE_PERIODIC"] = who
        beat = site.running.beat()
        before = len(site.sent("slow"))
        wait_until(lambda before=before: len(site.sent("slow")) > before, f"{who} sends")  # type: ignore[misc]
        slow.refresh_from_db()
        expected = {"slow"} if who == "wheel" else set()
        wait_until(lambda expected=expected: {"slow"} & site.schedules().keys() == expected, "handed")  # type: ignore[misc]
        beat.terminate()
        counts.append(len(site.sent("slow")))
    most = len(counts) + (time.monotonic() - began_s) / 4
    assert counts[-1] <= most, "an instant that was sent is not due again at each start"
