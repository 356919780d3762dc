"""Recurring schedules that are all due at one instant, and the time of a message.

::

    render     occurrences by the renderer alone        the yardstick: the same calls by apply_async, captured
    herd       a scheduler on Redis and SQLite, fsync on: the time from the instant until all are in their queue
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_wheel import Celery
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.bulk_load.message_template import Sampler
from celery_wheel.bulk_load.row import TaskCall
from celery_wheel.console.output import progress
from celery_wheel.engine.recurring.occurrence import Occurrence
from celery_wheel.operations.figure import Figure
from celery_wheel.producer.eta import due_time_of_header
from celery_wheel.recurring import Instants, Recurrence, to_json
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.occurrences import ScheduleRenderer
from celery_wheel.store.schedule_model import Schedule
from tests.kit.processes import Process
from tests.kit.servers.redis import RedisServer
from tests.kit.stack import Stack

TARGET_US, TARGET_S = 40, 8
RENDERED, TURNS = 2_000, 5
AT_MS = 1_793_664_000_000
QUEUE = "celery"


def run(folder: Path, rows: int) -> Iterator[Figure]:
    yield from _render()
    with RedisServer(folder / "redis") as server, Stack(folder / "stack", server) as stack:
        yield from _herd(stack, rows // 20)


def _render() -> Iterator[Figure]:
    app: Any = Celery("bench", broker="redis://", set_as_current=False)

    @app.task(name="bench.report", shared=False)
    def task(number: int, period: str) -> None: ...

    recurrence = to_json(Recurrence(Instants((AT_MS,))))
    schedules = [
        Schedule(number, f"report {number}", to_text(_definition(recurrence, number)), "api", 1, AT_MS)
        for number in range(RENDERED)
    ]
    renderer, sampler = ScheduleRenderer(app, 2**20, QueuedMessageReader().decode), Sampler(app)
    due = due_time_of_header(app, "2026-11-03T00:00:00+00:00")

    def by_renderer(one: Schedule) -> None:
        occurrence = Occurrence(0, AT_MS, AT_MS, None, str(uuid.UUID(int=one.id)))
        renderer.render(one, read_definition(one.definition), occurrence)

    def by_celery(one: Schedule) -> None:
        sampler.send(TaskCall("bench.report", task, [one.id, "daily"], {}, {"queue": QUEUE}, due, str(one.id)))

    best = {}
    for name, render in (("renderer", by_renderer), ("apply_async", by_celery)) * TURNS:
        began = time.process_time()
        for one in schedules:
            render(one)
        best[name] = min(best.get(name, 1e9), (time.process_time() - began) / RENDERED * 1e6)
    cost = best["renderer"], "µs", "by Celery's own code", best["apply_async"], TARGET_US
    yield Figure("schedules", "a message of an occurrence, CPU", *cost, less_is_better=True)
    app.close()


def _definition(recurrence: Any, number: int) -> dict[str, Any]:
    options = {"queue": QUEUE}
    return {"recurrence": recurrence, "task": "bench.report", "args": [number, "daily"], "options": options}


def _herd(stack: Stack, count: int) -> Iterator[Figure]:
    beat = stack.beat()
    stack.wait_for_holder(beat)
    began = time.time()
    at_s = int(began) + 20 + count // 2_000
    recurrence = Recurrence(Instants((at_s * 1_000,)))
    fields = {"recurrence": recurrence, "task": "bench.report", "queue": QUEUE}
    with progress("schedules", 2) as bar:
        bar(0, doing="create")
        stack.app.wheel.schedules.create_many({f"report {n}": {**fields, "args": [n, "daily"]} for n in range(count)})
        created_s = time.time() - began
        if time.time() > at_s - 5:
            raise AssertionError(f"creating {count:,} schedules took {created_s:.1f} s; the instant is too near")
        yield Figure("schedules", f"{count:,} created", created_s, "s", less_is_better=True)
        bar(1, doing="herd")
        time.sleep(max(0.0, at_s - 4 - time.time()))
        cpu_s = _cpu_s(beat)
        while stack.redis.llen(QUEUE) < count:
            if time.time() > at_s + 120:
                raise AssertionError(f"{stack.redis.llen(QUEUE):,} of {count:,} are in their queue after 120 s")
            time.sleep(0.02)
        late_s, cpu_s = time.time() - at_s, _cpu_s(beat) - cpu_s
        bar(2)
    name = f"{count:,} due at one instant: all in their queue"
    yield Figure("schedules", name, late_s, "s", target=TARGET_S, less_is_better=True)
    yield Figure("schedules", "… CPU of the scheduler", cpu_s / count * 1e6, "µs/occurrence", less_is_better=True)


def _cpu_s(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
