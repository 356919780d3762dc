"""The seeds of a test: as many as fit into its budget of time, and never fewer than every oracle needs.

On a slow machine fewer seeds run; each that runs is the same everywhere. ``WHEEL_SEEDS=100000 pytest tests/simulation``
runs so many, however long it takes; ``python -m tests.simulation seed SEED`` prints what happens in one, and
``--minimise`` the shortest history that breaks the same promise.
"""

import os
import time
from collections.abc import Iterator

import pytest

_ASKED = int(os.environ.get("WHEEL_SEEDS", "0"))

#: A night of seeds has no time-out.
as_long_as_it_takes = pytest.mark.timeout(0) if _ASKED else pytest.mark.timeout(120)


def seeds(at_least: int, at_most: int, budget_s: float) -> Iterator[int]:
    """Yield 0, 1, 2 …, ``at_most`` of them, or until the time is used up, but ``at_least`` so many."""
    began_s = time.monotonic()
    for seed in range(_ASKED or at_most):
        if not _ASKED and seed >= at_least and time.monotonic() - began_s > budget_s:
            return
        yield seed
