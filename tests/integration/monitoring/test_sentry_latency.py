"""Sentry, as released on PyPI, in a worker: the latency of a queue begins at the dispatch."""

from __future__ import annotations

import sys

from tests.kit.patience import wait_until
from tests.kit.project import read_lines
from tests.kit.stack import Stack


def test_the_latency_of_a_delayed_task_has_no_delay_in_it(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat())
    command = ("-m", "celery", "-A", "tests.kit.sentry_spans", "worker", "-P", "solo", "-l", "INFO")
    stack.start("worker", sys.executable, *command, "--without-gossip", "--without-mingle").wait_for(" ready.")
    stack.app.send_task("backing_off", ("a",))  # its retry is sent by the worker, a second ahead
    stack.wait_for(counts={"a": 2})
    first, second = stack.notes()["a"]
    between_ms = second["ran_ms"] - first["ran_ms"]
    assert between_ms > 900
    wait_until(lambda: len(read_lines(stack.folder / "latencies")) == 2, "both runs are recorded")
    _, latency_ms = read_lines(stack.folder / "latencies")
    assert 0 <= latency_ms < between_ms - 900, "the second of delay is not in it"
