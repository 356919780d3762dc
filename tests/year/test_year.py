"""A year of the whole scheduler process in virtual time. ``WHEEL_SEEDS=20 pytest tests/year`` runs twenty years."""

import sys
import threading
import time

import pytest

from tests.kit.virtual_machine import product
from tests.simulation.seeds import as_long_as_it_takes, seeds
from tests.year.world import DAYS, Year

#: Events that a year must have, or a judge has nothing to judge.
HAPPENS = ("pushed", "occurrences", "ends of runs", "told", "entries edited", "holder frozen", "holder stopped")
HAPPENS += ("holder killed", "clock stepped", "idle hours", "broker refused", "store refused", "store full")


@pytest.mark.slow
@as_long_as_it_takes
@pytest.mark.timeout(600)
def test_nothing_dies_of_old_age() -> None:
    for seed in seeds(1):
        year = Year(seed + 1, DAYS).run()
        never = [what for what in HAPPENS if not year.judge.counts[what]]
        assert not never, f"the year no longer reaches: {never}"


def test_no_module_of_the_shell_reads_time_or_threads_past_the_machine() -> None:
    """A name that a module has imported from ``time`` or ``threading`` would be the real one."""
    real = {id(getattr(time, name)): f"time.{name}" for name in ("monotonic", "time", "time_ns", "sleep")}
    real |= {id(getattr(threading, name)): f"threading.{name}" for name in ("Thread", "Event", "Condition")}
    rooms = ("celery_wheel.engine", "celery_wheel.scheduler", "celery_wheel.requests", "celery_wheel.worker")
    assert any(module.__name__ == "celery_wheel.scheduler.service" for module in product())
    assert "celery_wheel.engine.pool" in sys.modules
    unseen = [
        f"{module.__name__}: {real[id(value)]}"
        for module in product()
        if module.__name__.startswith(rooms)
        for value in vars(module).values()
        if id(value) in real
    ]
    assert unseen == []
