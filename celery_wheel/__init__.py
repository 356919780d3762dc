"""Durable countdown, eta and retry for Celery: a hierarchical timing wheel in beat.

Importing this package imports nothing else; each name below is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.app import Celery, install

__version__ = "0.1.0"
__all__ = ["Celery", "__version__", "install"]

_HOME = {"Celery": "celery_wheel.app", "install": "celery_wheel.app"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
