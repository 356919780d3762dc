"""Durable countdown, eta and retry for Celery: a hierarchical timing wheel in beat.

Importing this package imports no other module; the first use of a name below imports the module that defines it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.app import Celery, install
    from celery_wheel.control import wheel_of
    from celery_wheel.errors import NotCommitted, ScheduleExists, WheelUnavailable
    from celery_wheel.requests.request import TransactionalRequest
    from celery_wheel.requests.results import CommandResult, CompletionResult, ScheduleAnswer
    from celery_wheel.values import __version__
    from celery_wheel.worker.batches import Batches
    from celery_wheel.worker.once import once, once_table

__all__ = [
    "Batches",
    "Celery",
    "CommandResult",
    "CompletionResult",
    "NotCommitted",
    "ScheduleAnswer",
    "ScheduleExists",
    "TransactionalRequest",
    "WheelUnavailable",
    "__version__",
    "install",
    "once",
    "once_table",
    "wheel_of",
]

_MODULES = {
    "Batches": "celery_wheel.worker.batches",
    "Celery": "celery_wheel.app",
    "CommandResult": "celery_wheel.requests.results",
    "CompletionResult": "celery_wheel.requests.results",
    "NotCommitted": "celery_wheel.errors",
    "ScheduleAnswer": "celery_wheel.requests.results",
    "ScheduleExists": "celery_wheel.errors",
    "TransactionalRequest": "celery_wheel.requests.request",
    "WheelUnavailable": "celery_wheel.errors",
    "__version__": "celery_wheel.values",
    "install": "celery_wheel.app",
    "once": "celery_wheel.worker.once",
    "once_table": "celery_wheel.worker.once",
    "wheel_of": "celery_wheel.control",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
