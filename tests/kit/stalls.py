"""Stalls: with ``STALLS=0.15`` in the environment each step of a round, and each commit, may wait before the next.

A test that waits for one state and asserts a later one passes on a quiet machine, and fails here::

    make test-stalls        all of tests/integration
    STALLS=0.15 pytest …    any tests

The value is the chance of a stall, which takes up to MOST_S. All threads of the test project's processes stall, and in
the process of the tests all but the main thread. Limits of time that are promised (lateness, a takeover) may fail.

A process stalls once it has imported this module, as the test project and ``tests/conftest.py`` do.
"""

import os
import random
import threading
import time
from collections.abc import Iterator

from sqlalchemy import Engine, event

from celery_wheel.engine import runner
from celery_wheel.engine.round import Round, RoundSteps, run_round

#: Seconds.
MOST_S = 0.6

_CHANCE = float(os.environ["STALLS"])

#: pytest-randomly gives every process of the tests the same numbers by ``random``.
_ANY = random.SystemRandom()


def stall() -> None:
    of_a_test = threading.current_thread() is threading.main_thread() and "TEST_PROJECT" not in os.environ
    if not of_a_test and _ANY.random() < _CHANCE:
        time.sleep(_ANY.uniform(0, MOST_S))


def _stalling(steps: RoundSteps) -> Iterator[str | Round]:
    for step in steps:
        stall()
        yield step
    stall()


def _at_commit(_connection: object, _cursor: object, statement: str, *_: object) -> None:
    if statement == "COMMIT":
        stall()


runner.run_round = lambda steps, *on_step: run_round(_stalling(steps), *on_step)
event.listen(Engine, "before_cursor_execute", _at_commit)
event.listen(Engine, "after_cursor_execute", _at_commit)
