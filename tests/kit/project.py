"""The Celery project of the tests: every task leaves a note of how it was run, in a file that no fault touches.

A process loads it by ``celery -A tests.kit.project`` and finds in the environment, as JSON in ``TEST_PROJECT``:

1. ``folder``: where the file ``notes`` is, with a line for each run, and ``revoked``, with a line for each signal;
2. ``queues``: name, exchange, its type and routing key of each queue beyond Celery's default one;
3. ``plain``: the app is Celery's own class, without the wheel;
4. ``settings``: all settings of the app, the broker's URL and the store's included.

Tests make apps of the same project by ``make_app``: producers, and the canvas of its tasks.
"""

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from importlib import import_module
from pathlib import Path
from typing import Any

import celery
from celery import Task
from celery.signals import task_revoked
from kombu import Exchange, Queue

from celery_wheel import Batches, Celery

#: Name, exchange, type of the exchange, routing key.
QueueParts = Sequence[str]


def write_line(path: Path, line: object) -> None:
    """Append a line in one write, since several processes may do so at once."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(line, default=repr).encode() + b"\n")
    finally:
        os.close(file)


def read_lines(path: Path) -> list[Any]:
    """Return the values of the complete lines of a file, as ``write_line`` writes them; the last may be incomplete."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def queues_of(parts: Sequence[QueueParts]) -> list[Queue]:
    return [Queue(name, Exchange(exchange, kind), key) for name, exchange, kind, key in parts]


def make_app(
    settings: Mapping[str, Any],
    folder: Path | str = "",
    queues: Sequence[QueueParts] = (),
    kind: Any = Celery,
    current: bool = False,
) -> Any:
    app = kind("project", set_as_current=current)
    app.conf.update(
        {
            "beat_scheduler": "wheel",
            "beat_schedule_filename": f"{folder}/celerybeat-schedule",
            "broker_connection_retry_on_startup": True,
            "task_ignore_result": "result_backend" not in settings,
            **({"task_queues": queues_of(queues)} if queues else {}),
            **settings,
        }
    )
    return add_tasks(app, Path(folder))


def leave_note(folder: Path, task: Task, tag: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> None:
    request = task.request
    headers, info = request.headers or {}, request.delivery_info or {}
    note = {
        "tag": tag,
        "args": args,
        "kwargs": kwargs,
        "ran_ms": time.time_ns() // 1_000_000,
        **{name: getattr(request, name) for name in ("id", "eta", "retries", "headers", "delivery_info", "timelimit")},
        **{
            name: getattr(request, name) for name in ("expires", "ignore_result", "shadow", "stamped_headers", "stamps")
        },
        "group": request.group is not None,
        "wheel_group": getattr(request, "wheel_group", None),
        "is_root": request.root_id == request.id,
        "reply_to": bool(request.reply_to),
        "delivery": str((request.get("properties") or {}).get("delivery_tag") or info.get("delivery_tag")),
        "redelivered": bool(info.get("redelivered")),
        "marked": bool(headers.get("wheel_redelivered") or request.get("wheel_redelivered")),
        "greeting": headers.get("greeting") or request.get("greeting"),
    }
    write_line(folder / "notes", note)


def add_tasks(app: Any, folder: Path) -> Any:
    """Return an app of the project; the tests have an app for each configuration."""

    @app.task(name="note", bind=True, shared=False)
    def note(self: Task, tag: Any = None, *args: Any, **kwargs: Any) -> int:
        leave_note(folder, self, tag, args, kwargs)
        return len(args)

    @app.task(name="add", bind=True, shared=False)
    def add(self: Task, x: int, y: int, tag: str) -> int:
        leave_note(folder, self, tag, [x, y])
        return x + y

    @app.task(name="total", bind=True, shared=False)
    def total(self: Task, numbers: list[int], tag: str) -> int:
        leave_note(folder, self, tag, numbers)
        return sum(numbers)

    @app.task(name="retried", bind=True, shared=False, max_retries=5)
    def retried(self: Task, tag: str, times: int, *args: Any) -> str:
        leave_note(folder, self, tag, args)
        if self.request.retries < times:
            raise self.retry(countdown=0.4)
        return "done"

    @app.task(name="occurrence", bind=True, shared=False, max_retries=5)
    def occurrence(self: Task, tag: str, times: int = 0, holds: bool = False) -> None:
        """Note the instant; hold until the file ``released`` exists; retry so many times."""
        wheel = self.request.wheel
        leave_note(folder, self, tag, [] if wheel is None else [str(value) for value in astuple(wheel)])
        while holds and not (folder / "released").exists():
            time.sleep(0.02)
        if self.request.retries < times:
            raise self.retry(countdown=0.2)

    @app.task(name="span", bind=True, shared=False, max_retries=5)
    def span(self: Task, tag: Any = "", ms: int = 50, again_s: float | None = None) -> None:
        """Work so long, between two lines of the file ``spans``; retry once with the countdown ``again_s``."""
        marked = bool((self.request.headers or {}).get("wheel_redelivered") or self.request.get("wheel_redelivered"))
        properties = self.request.get("properties") or {}
        publication = properties.get("message_id") or properties.get("delivery_tag")
        for step in ("begin", "end"):
            at_ms = time.time_ns() // 1_000_000
            line = [step, self.request.wheel_group, self.request.id, marked, tag, os.getpid(), at_ms, publication]
            write_line(folder / "spans", line)
            time.sleep(ms / 1_000 if step == "begin" else 0)
        if again_s is not None and self.request.retries < 1:
            raise self.retry(countdown=again_s)

    options: Any = {"autoretry_for": (LookupError,), "retry_kwargs": {"countdown": 0.4}, "retry_jitter": False}

    @app.task(name="many", base=Batches, flush_every=20, flush_interval=1, shared=False, **options)
    def many(calls: list[Any]) -> list[Any] | None:
        """Write the ids of the calls into the file ``batches``; ``"die"`` kills the process, ``"again"`` fails once."""
        marked = any("wheel_redelivered" in vars(call) for call in calls)
        write_line(folder / "batches", [[call.id for call in calls], marked])
        if any(call.args == ("die",) for call in calls):
            os.kill(os.getpid(), signal.SIGKILL)
        if any(call.args == ("again",) for call in calls) and len(read_lines(folder / "batches")) < 2:
            raise LookupError("the first run of a batch with such a call")
        return [call.args[0] for call in calls]

    @app.task(
        name="backing_off", bind=True, shared=False, autoretry_for=(KeyError,), retry_backoff=1, retry_jitter=False
    )
    def backing_off(self: Task, tag: str) -> None:
        leave_note(folder, self, tag)
        if self.request.retries < 1:
            raise KeyError(tag)

    @app.task(name="failing", shared=False)
    def failing(tag: str) -> None:
        raise ValueError(tag)

    @app.task(name="failed", bind=True, shared=False)
    def failed(self: Task, failed_id: str) -> None:
        leave_note(folder, self, "link_error", [failed_id])

    @app.task(name="silent", shared=False, ignore_result=True)
    def silent() -> None: ...

    @app.task(name="tick", shared=False)
    def tick() -> None:
        """The task of the periodic entry of the tests."""

    return app


def _of_the_environment(given: Mapping[str, Any]) -> Any:
    kind, folder = celery.Celery if given["plain"] else Celery, Path(given["folder"])

    @task_revoked.connect(weak=False)
    def on_revoked(sender: Any = None, request: Any = None, **how: Any) -> None:
        write_line(folder / "revoked", [sender.name, request.id, how["terminated"], how["signum"], how["expired"]])

    return make_app(given["settings"], folder, given["queues"], kind, current=True)


if "SABOTAGE" in os.environ:
    import_module("tests.kit.sabotage")

if "STALLS" in os.environ:
    import_module("tests.kit.stalls")
if "TEST_PROJECT" in os.environ:
    app = _of_the_environment(json.loads(os.environ["TEST_PROJECT"]))
