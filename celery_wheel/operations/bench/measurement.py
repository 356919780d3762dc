"""The rates of an installation: tasks accepted and dispatched at once, on its own broker and beside its own store.

::

    send       apply_async(countdown=…) by one producer           Celery and the broker
    ingest     wheel queue ─► store                               the broker and the disk's fsync
    move       app.wheel.run_now of all of them                   the store
    dispatch   store ─► the task's own queue                      the store and the broker

The site's app is only read: the measurement writes to its own store and queues (``isolation``), and removes them in the
end, also after an error. One engine is driven step by step; a scheduler does the steps at once, in several threads.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from celery_wheel.conf import Conf
from celery_wheel.operations.bench.isolation import check_own, own_app, own_queue, own_store
from celery_wheel.operations.bench.rig import BenchRig, Pace, Progress, rig
from celery_wheel.store.model import MOVE

#: Beyond the time of the measurement, and beyond the window of the wheel.
COUNTDOWN_S = 86_400
MOVED_AT_ONCE = 1_000


def measure(app: Any, count: int, body_bytes: int, progress: Progress) -> dict[str, Pace]:
    """Return the pace of each step. Raises WheelError where the store or the broker fails."""
    conf = Conf(app)
    conf.check()
    name = f"wheel-bench-{secrets.token_hex(4)}"
    with own_store(conf.store, name) as (url, file), closing(own_app(app, url, name)) as own:
        check_own(Conf(own), name, file)
        with own_queue(own, name) as queue, rig(own, progress=progress) as driven:
            return dict(_steps(own, driven, queue, count, "x" * body_bytes))


def _steps(app: Any, driven: BenchRig, queue: Any, count: int, body: str) -> Iterator[tuple[str, Pace]]:
    engine, stats = driven.engine, driven.engine.stats
    task_ids: list[str] = []

    def send() -> int:
        sent = app.send_task(
            "celery_wheel.operations.bench", (body,), countdown=COUNTDOWN_S, queue=queue, ignore_result=True
        )
        task_ids.append(sent.id)
        return len(task_ids)

    driven.acquire()
    yield "send", driven.until("send", count, send)
    yield "ingest", driven.until("ingest", count, lambda: stats.accepted, engine.ingest, engine.prefetch)
    for start in range(0, count, MOVED_AT_ONCE):
        command = json.dumps({"task_ids": task_ids[start : start + MOVED_AT_ONCE], "eta_ms": None}).encode()
        driven.store.put_inbox(0, [(MOVE, command)])
    yield "move", driven.until("move", count, lambda: stats.moved, engine.ingest)
    sending = (engine.prefetch, engine.dispatch, engine.settle)
    yield "dispatch", driven.until("dispatch", count, lambda: stats.dispatched, *sending)
