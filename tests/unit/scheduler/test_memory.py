"""The memory of a scheduler's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_wheel.scheduler.process import ARENAS, GARBAGE_EVERY

#: Eight threads hold memory at the same time, which glibc describes afterwards.
PROGRAM = """
import ctypes, gc, threading
from celery_wheel.scheduler.process import tune_memory
if {tuned}:
    tune_memory()
barrier, held = threading.Barrier(8), []
def work():
    barrier.wait()
    held.append([bytes(2_000) for _ in range(500)])
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(gc.get_threshold()[0], flush=True)
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def _run(*, tuned: bool) -> tuple[int, int]:
    """Return how many objects make a run of the garbage collector due, and the number of arenas."""
    program = PROGRAM.format(tuned=tuned)
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return int(said.split()[0]), said.count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's")
def test_a_scheduler_has_few_arenas_and_collects_garbage_seldom() -> None:
    assert _run(tuned=True) == (GARBAGE_EVERY, ARENAS)
    threshold, arenas = _run(tuned=False)
    assert threshold < GARBAGE_EVERY
    assert arenas > ARENAS
