"""Tasks that are due at one instant, by another project's scheduler. ``pollers`` runs it in a virtual environment.

::

    python -P poller_work.py '{"kind": "rq", "redis": …, "postgresql": …, "folder": …, "count": 2000, "due": …, …}'
        {"late_ms": […]}      of the tasks that arrived in that time

It imports nothing of this project. Each function schedules the tasks as its project's manual says.
"""

import asyncio
import json
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

LATE_MS: list[float] = []
OPTIONS: dict[str, Any] = {}


def note(*_: object, **__: object) -> None:
    LATE_MS.append((time.time() - OPTIONS["due"]) * 1_000)


def over() -> bool:
    return len(LATE_MS) >= OPTIONS["count"] or time.time() > OPTIONS["due"] + OPTIONS["at_most_s"]


def due() -> datetime:
    return datetime.fromtimestamp(OPTIONS["due"], UTC)


def wait() -> None:
    while not over():
        time.sleep(0.01)


def _tick(scheduler: Any) -> None:
    send = scheduler.apply_async

    def noted(*args: Any, **options: Any) -> Any:
        found = send(*args, **options)
        note()
        return found

    scheduler.apply_async = noted
    while not over():
        time.sleep(min(scheduler.tick() or 0, scheduler.max_interval, 1))


def django_celery_beat() -> None:
    import django
    from celery import Celery
    from django.conf import settings
    from django.core.management import call_command

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{OPTIONS['folder']}/clocked.sqlite3"}
    settings.configure(INSTALLED_APPS=["django_celery_beat"], DATABASES={"default": database}, USE_TZ=True)
    django.setup()
    call_command("migrate", verbosity=0)
    from django_celery_beat.models import ClockedSchedule, PeriodicTask
    from django_celery_beat.schedulers import DatabaseScheduler

    clocked = ClockedSchedule.objects.create(clocked_time=due())
    names = (f"bench/{n}" for n in range(OPTIONS["count"]))
    PeriodicTask.objects.bulk_create(
        PeriodicTask(name=name, task="bench", clocked=clocked, one_off=True, queue="bench") for name in names
    )
    _tick(DatabaseScheduler(Celery("bench", broker=OPTIONS["redis"])))


def redbeat() -> None:
    from celery import Celery
    from celery.schedules import schedule
    from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry

    app = Celery("bench", broker=OPTIONS["redis"])
    app.conf.update(redbeat_redis_url=OPTIONS["redis"], redbeat_lock_key=None)
    scheduler = RedBeatScheduler(app, lazy=False)
    scheduler.lock_key = None
    for n in range(OPTIONS["count"]):
        every, to = schedule(3_600, app=app), {"queue": "bench"}
        entry = RedBeatSchedulerEntry(f"bench/{n}", "bench", every, options=to, app=app)
        entry.last_run_at = due() - timedelta(hours=1)
        entry.save()
    _tick(scheduler)


def rq() -> None:
    import redis
    from rq import Queue
    from rq.scheduler import RQScheduler

    connection = redis.Redis.from_url(OPTIONS["redis"])
    queue = Queue("bench", connection=connection)
    for _ in range(OPTIONS["count"]):
        queue.enqueue_at(due(), "bench.nothing")
    scheduler = RQScheduler([queue], connection=connection)
    scheduler.acquire_locks()

    def take() -> None:
        while not over():
            for _ in connection.lpop(queue.key, 1_000) or ():
                note()
            time.sleep(0.002)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    while not over():
        scheduler.enqueue_scheduled_jobs()
        time.sleep(scheduler.interval)
    thread.join()


def dramatiq() -> None:
    import dramatiq as module
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=OPTIONS["redis"])
    module.set_broker(broker)
    actor = module.actor(note, actor_name="note")
    for _ in range(OPTIONS["count"]):
        actor.send_with_options(delay=max(0, int((OPTIONS["due"] - time.time()) * 1_000)))
    worker = module.Worker(broker)
    worker.start()
    wait()


def huey() -> None:
    from huey import RedisHuey

    broker = RedisHuey("bench", url=OPTIONS["redis"], utc=True, results=False)
    task = broker.task()(note)
    for _ in range(OPTIONS["count"]):
        task.schedule(eta=due())
    broker.create_consumer(workers=8, periodic=False).start()
    wait()


def procrastinate() -> None:
    from procrastinate import App, PsycopgConnector

    async def work() -> None:
        app = App(connector=PsycopgConnector(conninfo=OPTIONS["postgresql"]))
        task = app.task(name="note")(note)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await task.configure(schedule_at=due()).batch_defer_async(*({} for _ in range(OPTIONS["count"])))
            worker = asyncio.ensure_future(app.run_worker_async(concurrency=8, install_signal_handlers=False))
            while not over() and not worker.done():
                await asyncio.sleep(0.01)
            if worker.done():
                worker.result()

    asyncio.run(work())


if __name__ == "__main__":
    import logging
    import os

    logging.disable()
    OPTIONS.update(json.loads(sys.argv[1]))
    globals()[OPTIONS["kind"].replace("-", "_")]()
    print(json.dumps({"late_ms": LATE_MS}), flush=True)
    os._exit(0)  # workers and consumers that still run are not measured
