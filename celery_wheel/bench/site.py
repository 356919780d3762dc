"""The rates of an installation: tasks in and out at once, on its own broker and beside its own store.

::

    send       apply_async(countdown=…) by one producer           Celery and the broker
    ingest     wheel queue ─► store                               the broker and the disk's fsync
    move       app.wheel.run_now of all of them                   the store
    dispatch   store ─► the task's own queue                      the store and the broker

The site's app is only read: everything that is written is the measurement's own (``own``), and removed in the end,
whatever happens. One engine is driven step by step; a scheduler does these things at once, in several threads.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from celery_wheel.bench.own import check_own, own_app, own_queue, own_store
from celery_wheel.bench.rig import Pace, Progress, Rig, rig
from celery_wheel.conf import Conf
from celery_wheel.store.model import MOVE

#: Far enough that nothing is due by itself meanwhile, and within no window of the wheel.
COUNTDOWN_S = 86_400
MOVED_AT_ONCE = 1_000


def measure(app: Any, count: int, body_bytes: int, progress: Progress) -> dict[str, Pace]:
    """The pace of each step. Raises WheelError where store or broker do not do their part."""
    conf = Conf(app)
    conf.check()
    name = f"wheel-bench-{secrets.token_hex(4)}"
    with own_store(conf.store, name) as (url, file), closing(own_app(app, url, name)) as own:
        check_own(Conf(own), name, file)
        with own_queue(own, name) as queue, rig(own, progress=progress) as driven:
            return dict(_steps(own, driven, queue, count, "x" * body_bytes))


def _steps(app: Any, driven: Rig, queue: Any, count: int, body: str) -> Iterator[tuple[str, Pace]]:
    engine, stats = driven.engine, driven.engine.stats
    task_ids: list[str] = []

    def send() -> int:
        sent = app.send_task("celery_wheel.bench", (body,), countdown=COUNTDOWN_S, queue=queue, ignore_result=True)
        task_ids.append(sent.id)
        return len(task_ids)

    driven.take()
    yield "send", driven.until("send", count, send)
    yield "ingest", driven.until("ingest", count, lambda: stats.accepted, engine.ingest, engine.prefetch)
    for start in range(0, count, MOVED_AT_ONCE):
        asked = json.dumps({"task_ids": task_ids[start : start + MOVED_AT_ONCE], "eta_ms": None}).encode()
        driven.store.put_inbox(0, [(MOVE, asked)])
    yield "move", driven.until("move", count, lambda: stats.moved, engine.ingest)
    sending = (engine.prefetch, engine.dispatch, engine.settle)
    yield "dispatch", driven.until("dispatch", count, lambda: stats.dispatched, *sending)
