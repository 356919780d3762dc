"""Durable countdown, eta and retry for Celery: a hierarchical timing wheel in beat.

Importing this package imports no other module; the first use of a name below imports the module that defines it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.app import Celery as Celery
    from celery_wheel.app import install as install
    from celery_wheel.control import wheel_of as wheel_of
    from celery_wheel.errors import NotCommitted as NotCommitted
    from celery_wheel.errors import ScheduleExists as ScheduleExists
    from celery_wheel.errors import WheelUnavailable as WheelUnavailable
    from celery_wheel.requests.request import TransactionalRequest as TransactionalRequest
    from celery_wheel.requests.results import CommandResult as CommandResult
    from celery_wheel.requests.results import CompletionResult as CompletionResult
    from celery_wheel.requests.results import ScheduleAnswer as ScheduleAnswer
    from celery_wheel.values import __version__ as __version__
    from celery_wheel.worker.batches import Batches as Batches
    from celery_wheel.worker.once import once as once
    from celery_wheel.worker.once import once_table as once_table

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

if not TYPE_CHECKING:  # a type checker reads the imports above
    __all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
