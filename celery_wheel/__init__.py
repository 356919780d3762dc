"""Durable countdown, eta and retry for Celery: a hierarchical timing wheel in beat.

Importing this package imports nothing else; each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.app import Celery, install
    from celery_wheel.control import wheel_of
    from celery_wheel.errors import NotCommitted, WheelUnavailable
    from celery_wheel.requests.request import Pending
    from celery_wheel.requests.verdicts import Completed, Verdict

__version__ = "0.1.0"
__all__ = [
    "Celery",
    "Completed",
    "NotCommitted",
    "Pending",
    "Verdict",
    "WheelUnavailable",
    "__version__",
    "install",
    "wheel_of",
]

_HOME = {
    "Celery": "celery_wheel.app",
    "install": "celery_wheel.app",
    "wheel_of": "celery_wheel.control",
    "Completed": "celery_wheel.requests.verdicts",
    "Verdict": "celery_wheel.requests.verdicts",
    "Pending": "celery_wheel.requests.request",
    "NotCommitted": "celery_wheel.errors",
    "WheelUnavailable": "celery_wheel.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
