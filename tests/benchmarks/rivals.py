"""Entries that are due at once, by another package's scheduler in a process of its own. ``recurring`` runs it.

::

    python -m tests.benchmarks.rivals '{"kind": "redbeat", "broker": …, "folder": …, "entries": 2000, "at_most_s": 60}'
        line on stdin                       begin
        {"sent": 2000, "wall_s": 3.1}       the end: all are sent, or the time is over

The entries recur every hour and have never run; ``tick`` is called as beat calls it, without its sleep.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.schedules import schedule

TASK, QUEUE = "shop.reports.tasks.send_daily", "bench.rival"


def django_scheduler(app: Any, options: dict[str, Any]) -> Any:
    import django
    from django.conf import settings
    from django.core.management import call_command

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{options['folder']}/rival.sqlite3"}
    settings.configure(INSTALLED_APPS=["django_celery_beat"], DATABASES={"default": database}, USE_TZ=True)
    django.setup()
    call_command("migrate", verbosity=0)
    from django.utils import timezone
    from django_celery_beat.models import IntervalSchedule, PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler

    hourly = IntervalSchedule.objects.create(every=1, period="hours")
    long_ago = timezone.now() - timedelta(hours=2)
    PeriodicTask.objects.bulk_create(
        PeriodicTask(
            name=f"daily/{n}", task=TASK, interval=hourly, args=json.dumps([n]), queue=QUEUE, last_run_at=long_ago
        )
        for n in range(options["entries"])
    )
    return DatabaseScheduler(app)


def redbeat_scheduler(app: Any, options: dict[str, Any]) -> Any:
    from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry

    app.conf.update(redbeat_redis_url=options["broker"], redbeat_lock_key=None)
    found = RedBeatScheduler(app, lazy=False)
    found.lock_key = None
    for n in range(options["entries"]):
        entry = RedBeatSchedulerEntry(
            f"daily/{n}", TASK, schedule(3_600, app=app), args=[n], options={"queue": QUEUE}, app=app
        )
        entry.last_run_at = app.now() - timedelta(hours=2)
        entry.save()
    return found


KINDS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "django-celery-beat": django_scheduler,
    "redbeat": redbeat_scheduler,
}


def main(options: dict[str, Any]) -> None:
    app: Any = Celery("rival", broker=options["broker"])
    scheduler = KINDS[options["kind"]](app, options)
    sent = [0]
    send = scheduler.apply_async

    def counted(*args: Any, **kwargs: Any) -> Any:
        found = send(*args, **kwargs)
        sent[0] += 1
        if time.monotonic() > until_s:
            raise TimeoutError
        return found

    scheduler.apply_async = counted
    sys.stdin.readline()
    began_s = time.monotonic()
    until_s = began_s + options["at_most_s"]
    try:
        while sent[0] < options["entries"] and time.monotonic() < until_s:
            wait_s = scheduler.tick()
            if wait_s:
                time.sleep(min(wait_s, 0.01))
    except TimeoutError:
        pass
    print(json.dumps({"sent": sent[0], "wall_s": time.monotonic() - began_s}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
