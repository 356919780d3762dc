"""The seeds of a test: as many as its oracles need, the same on every machine. A file of its own: three suites use it.

``WHEEL_SEEDS=100000 pytest tests/simulation`` runs so many, however long it takes; ``make seeds`` is the long form.
``python -m tests.simulation seed SEED`` prints what happens in one, and ``--minimise`` the shortest history that breaks
the same promise.
"""

import os

import pytest

_ASKED = int(os.environ.get("WHEEL_SEEDS", "0"))

#: A night of seeds has no time-out.
as_long_as_it_takes = pytest.mark.timeout(0) if _ASKED else pytest.mark.timeout(120)


def seeds(count: int) -> range:
    return range(_ASKED or count)
