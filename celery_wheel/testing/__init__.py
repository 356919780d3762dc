"""Support for users' own tests: an app whose delayed tasks wait in a wheel that only the test advances.

::

    plugin        the pytest fixture ``wheel``, which pytest finds itself; imports nothing until a test uses it
    wheel         VirtualWheel, the fixture's value: advance, run_all, pending, ran, cancel …
      patches     parts of the app that are replaced during the test, and restored exactly; results in memory
      engine      the real engine and the real store, on a clock that the test moves, and the engine's broker edge
      fence       the fence and the wheel queue of that edge, which models of brokers share
      worker      a kombu transport in memory; Celery's own request and tracer, in the test's own thread
      clock       virtual time, in step with freezegun and time-machine
      records     values that a test reads: PendingTask, Execution, SkippedMessage

Without pytest: ``with VirtualWheel(app) as wheel: …``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.testing.records import Execution, PendingTask, SkippedMessage
    from celery_wheel.testing.wheel import VirtualWheel

__all__ = ["Execution", "PendingTask", "SkippedMessage", "VirtualWheel"]

_MODULES = {
    "Execution": "celery_wheel.testing.records",
    "PendingTask": "celery_wheel.testing.records",
    "SkippedMessage": "celery_wheel.testing.records",
    "VirtualWheel": "celery_wheel.testing.wheel",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
