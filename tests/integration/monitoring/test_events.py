"""Monitoring by programs as released on PyPI: OpenTelemetry's traces, Sentry's latency; and celery-exporter's rule.

celery-exporter is no package of PyPI. ``queue_wait_s`` is its rule: from the later of sent and eta to the start.
"""

import sys
import time
from typing import Any

import pytest
from celery.events.state import State
from celery.utils.nodenames import nodesplit
from celery.utils.time import maybe_iso8601

from tests.kit.patience import patience, wait_until
from tests.kit.project import read_lines
from tests.kit.stack import Stack

DELAY_S = 3.0


def queue_wait_s(task: Any) -> float:
    eta = maybe_iso8601(task.eta)
    return float(task.started - (task.sent if eta is None else max(task.sent, eta.timestamp())))


@pytest.mark.slow
def test_the_wait_in_the_queue_is_short_and_the_scheduler_is_no_worker_of_its_host(stack: Stack) -> None:
    stack.change(worker_send_task_events=True, task_send_sent_event=True)
    stack.wait_for_holder(stack.beat())
    stack.worker()
    state, sent, called_s = State(), list[str](), list[float]()

    def on_event(event: dict[str, Any]) -> None:
        state.event(event)
        if len(state.workers) == 2 and not sent:
            called_s.append(time.time())
            sent.append(stack.app.send_task("note", ("a",), countdown=DELAY_S).id)
        task = state.tasks.get(sent[0]) if sent else None
        receiver.should_stop = task is not None and task.succeeded is not None

    with stack.app.connection_for_read() as connection:
        receiver = stack.app.events.Receiver(connection, handlers={"*": on_event})
        receiver.capture(limit=None, timeout=patience(30))
    task = state.tasks[sent[0]]
    after_due_s = task.started - called_s[0] - DELAY_S
    assert after_due_s > -0.01, "the task was pending meanwhile"
    assert 0 <= queue_wait_s(task) < after_due_s + 0.01, "the delay is not in it"
    [note] = stack.notes()["a"]
    assert note["eta"] is None, "the task itself sees what it sees without a delay"
    hosts = {name.partition("@")[0]: nodesplit(name)[1] for name in state.workers}
    assert hosts.keys() == {"wheel", "celery"}
    assert hosts["wheel"] == f"beat.{hosts['celery']}"


MODULE = "tests.kit.traces"


@pytest.mark.slow
def test_the_publish_and_the_run_link_the_span_that_sent_the_task(stack: Stack) -> None:
    stack.wait_for_holder(stack.beat(imports=[MODULE], wheel_opentelemetry=True))
    stack.worker("-P", "solo", imports=[MODULE])
    stack.app.send_task("backing_off", ("a",))  # its retry is sent by the worker, a second ahead
    stack.wait_for(counts={"a": 2})

    def spans(name: str) -> list[dict[str, Any]]:
        return [one for one in read_lines(stack.folder / "spans") if one["name"] == name]

    wait_until(lambda: len(spans("run/backing_off")) == 2, "both runs have a span")
    wait_until(lambda: spans("celery_wheel publish"), "the publish has a span")  # a worker may be faster than a confirm
    [sending], [publish] = spans("apply_async/backing_off"), spans("celery_wheel publish")
    first, second = spans("run/backing_off")
    assert sending["parent"] == first["id"]
    assert publish["links"] == [sending["id"]]
    # The message kept its context, of which an older instrumentation makes the run a child.
    assert [*second["links"], second["parent"]][0] == sending["id"]
    assert publish["parent"] is None
    assert publish["trace"] not in {sending["trace"], second["trace"]}
    assert publish["started_ns"] <= publish["ended_ns"]
    assert publish["started_ns"] - first["started_ns"] > 0.9 * 10**9, "the delay of a second is in no span"


@pytest.mark.slow
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
