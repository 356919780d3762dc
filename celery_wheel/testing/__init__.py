"""For users' own tests: an app whose delayed tasks wait in a wheel that only the test turns.

::

    plugin        the pytest fixture ``wheel``, found by pytest itself; imports nothing until a test asks for it
    wheel         VirtualWheel: advance, run_all, pending, ran, cancel … all that a test sees
      borrow      what of the app is exchanged meanwhile, and put back exactly
      transport   a kombu transport in memory: what the app publishes ends here …
      inbound     … in the wheel: the real engine and the real store, on a clock that the test moves
      worker      … or at a worker: Celery's own request and tracer, in the test's own thread
      results     a result backend in memory, which waits for nothing
      clock       virtual time, and how it keeps step with freezegun and time-machine
      seen        what a test looks at: Pending, Ran, Skipped

Without pytest: ``with VirtualWheel(app) as wheel: …``
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_wheel.testing.seen import Pending, Ran, Skipped
    from celery_wheel.testing.wheel import VirtualWheel

__all__ = ["Pending", "Ran", "Skipped", "VirtualWheel"]

_HOME = {
    "Pending": "celery_wheel.testing.seen",
    "Ran": "celery_wheel.testing.seen",
    "Skipped": "celery_wheel.testing.seen",
    "VirtualWheel": "celery_wheel.testing.wheel",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
