"""The events of workers and schedulers, as celery-exporter reads them: by Celery's own ``State``.

celery-exporter is no package of PyPI. ``queue_wait_s`` is its rule: from the later of sent and eta to the start.
"""

from __future__ import annotations

import time
from typing import Any

from celery.events.state import State
from celery.utils.nodenames import nodesplit
from celery.utils.time import maybe_iso8601

from tests.kit.patience import patience
from tests.kit.stack import Stack

DELAY_S = 3.0


def queue_wait_s(task: Any) -> float:
    eta = maybe_iso8601(task.eta)
    return float(task.started - (task.sent if eta is None else max(task.sent, eta.timestamp())))


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
