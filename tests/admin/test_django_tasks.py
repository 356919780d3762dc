"""Tasks of Django 6 on Celery: a task with ``run_after`` waits on the wheel, and its result says what became of it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("django.tasks", reason="Django has tasks of its own from 6.0 on")

from django.tasks import TaskContext, TaskResultStatus, task, task_backends
from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.test import override_settings
from django.utils import timezone

from celery_wheel.testing import VirtualWheel

TASKS = {"default": {"BACKEND": "django_wheel.tasks.WheelBackend", "QUEUES": ["default", "mail"]}}


@pytest.fixture(autouse=True)
def wheel_backend() -> Iterator[None]:
    with override_settings(TASKS=TASKS):
        yield


with override_settings(TASKS=TASKS):  # a task is checked by its backend where it is defined

    @task
    def add(one: int, other: int = 0) -> int:
        return one + other

    @task(queue_name="mail", takes_context=True)
    async def attempts(context: TaskContext) -> list[Any]:
        return [context.attempt, context.task_result.status, context.task_result.task.queue_name]

    @task
    def failing() -> None:
        raise LookupError("no such order")


def test_a_task_with_run_after_waits_on_the_wheel_and_returns_its_value(wheel: VirtualWheel) -> None:
    result = add.using(run_after=timezone.now() + timedelta(days=3)).enqueue(1, other=2)
    assert wheel.is_pending(result)
    wheel.advance(days=2)
    result.refresh()
    assert (result.status, result.started_at, result.attempts) == (TaskResultStatus.READY, None, 0)
    wheel.advance(days=1)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 1)
    times = [result.enqueued_at, result.started_at, result.finished_at]
    assert None not in times
    assert times == sorted(times)
    found = add.get_result(result.id)
    assert (found.args, found.kwargs, found.task.run_after) == ([1], {"other": 2}, result.task.run_after)


def test_a_task_without_run_after_goes_to_its_queue_at_once(wheel: VirtualWheel) -> None:
    result = attempts.enqueue()
    [execution] = wheel.run_due()
    assert execution.queue == "mail"
    result.refresh()
    assert result.return_value == [1, "RUNNING", "mail"], "a coroutine runs, and has its context"


def test_a_failed_task_has_its_error(wheel: VirtualWheel) -> None:
    wheel.propagate = False
    result = failing.enqueue()
    wheel.run_due()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    [error] = result.errors
    assert error.exception_class is LookupError
    assert "no such order" in error.traceback
    assert result.finished_at is not None


def test_a_cancelled_task_is_failed(wheel: VirtualWheel) -> None:
    result = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    assert wheel.app.wheel.cancel(result) == "done"
    wheel.app.backend.mark_as_revoked(result.id)  # as a scheduler does
    wheel.advance(hours=2)
    result.refresh()
    assert (result.status, result.errors[0].exception_class.__name__) == ("FAILED", "TaskRevokedError")


def test_each_step_sends_djangos_signals(wheel: VirtualWheel) -> None:
    heard: list[tuple[str, str]] = []

    def hear(name: str) -> Any:
        return lambda sender, task_result, **_: heard.append((name, task_result.status))

    hears = {signal: hear(name) for name, signal in (("enqueued", task_enqueued), ("started", task_started))}
    hears[task_finished] = hear("finished")
    for signal, receiver in hears.items():
        signal.connect(receiver)
    try:
        add.enqueue(1)
        wheel.run_due()
    finally:
        for signal, receiver in hears.items():
            signal.disconnect(receiver)
    assert heard == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_a_priority_a_foreign_queue_and_an_unknown_result_are_refused(wheel: VirtualWheel) -> None:
    with pytest.raises(InvalidTask, match="priority"):
        add.using(priority=5)
    with pytest.raises(InvalidTask, match="Queue 'other'"):
        add.using(queue_name="other")
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("unknown")
