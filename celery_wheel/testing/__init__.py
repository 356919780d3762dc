"""Support for users' own tests: an app whose delayed tasks wait in a wheel that only the test advances.

The pytest plugin has the fixture ``wheel``; without pytest: ``with VirtualWheel(app) as wheel: …``
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
