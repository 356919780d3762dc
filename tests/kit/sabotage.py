"""Sabotage: with ``SABOTAGE=folder`` in the environment the jobs of a scheduler fail when a test says so.

::

    (folder / "ingest of shard 0").write_text("raise")      the job raises at its next run
    (folder / "ingest of shard 0").write_text("hang")       it never returns from its next run
    (folder / "threads").touch()                            the process gets no further thread

A process looks at the folder before each run of a job, once it has imported this module.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery_wheel.engine.pool import Job, Pool, Wait

_FOLDER = Path(os.environ["SABOTAGE"])
_job, _start = Pool.job, threading.Thread.start


def fail(how: str) -> None:
    if how == "raise":
        raise RuntimeError("a test says so")
    threading.Event().wait()


def _sabotaged(pool: Pool, run: Callable[[], Wait], name: str, **options: Any) -> Job:
    order = _FOLDER / name

    def run_or_fail() -> Wait:
        if order.exists():
            fail(order.read_text())
        return run()

    return _job(pool, run_or_fail, name, **options)


def _start_unless_forbidden(thread: threading.Thread) -> None:
    if (_FOLDER / "threads").exists():
        raise RuntimeError("can't start new thread")
    _start(thread)


Pool.job = _sabotaged  # type: ignore[method-assign]
threading.Thread.start = _start_unless_forbidden  # type: ignore[method-assign]
