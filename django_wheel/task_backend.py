"""``WheelBackend``: tasks of Django as tasks of Celery; ``run_after`` waits on the wheel.

``enqueue`` writes the call to the result backend as "<id>.call", and sends Celery's task "django_wheel.run" with it.
The worker writes the call once more when it starts, and Celery its record of the run as "<id>"; ``get_result`` joins
the two. Without a result backend there are no results. The queue "default" is Celery's own default queue.

Promises: those of a Celery task with this app, whose settings hold (``task_acks_late`` …). ``enqueue`` is part of the
caller's transaction where ``wheel_transactional`` is set.
Non-promises: no priorities, whose order differs from broker to broker. A task is not tried again after an error.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from celery import shared_task, states
from celery.backends.base import DisabledBackend
from django.tasks import DEFAULT_TASK_QUEUE_NAME, Task, TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from django_wheel.project import project_wheel

NAME = "django_wheel.run"
#: Celery's state of a run → Django's. Any other state, like REVOKED, is a failure.
STATUS = {
    states.PENDING: TaskResultStatus.READY,
    states.RECEIVED: TaskResultStatus.READY,
    states.RETRY: TaskResultStatus.READY,
    states.STARTED: TaskResultStatus.RUNNING,
    states.SUCCESS: TaskResultStatus.SUCCESSFUL,
}


class WheelBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True

    @property
    def supports_get_result(self) -> bool:  # type: ignore[override]
        return not isinstance(self._app.backend, DisabledBackend)

    @property
    def _app(self) -> Any:
        return project_wheel().conf.app

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        self.validate_task(task)
        app, id_, now = self._app, str(uuid.uuid4()), timezone.now()
        eta = task.run_after
        if eta is not None and timezone.is_naive(eta):
            eta = timezone.make_aware(eta)
        call = {
            "task": task.module_path,
            "args": normalize_json(args),
            "kwargs": normalize_json(kwargs),
            "queue": task.queue_name,
            "run_after": None if task.run_after is None else task.run_after.isoformat(),
            "enqueued_at": now.isoformat(),
            "backend": self.alias,
        }
        if self.supports_get_result:
            app.backend.store_result(_call_id(id_), call, states.PENDING)
        queue = {} if task.queue_name == DEFAULT_TASK_QUEUE_NAME else {"queue": task.queue_name}
        app.tasks[NAME].apply_async((call,), task_id=id_, eta=eta, **queue)
        result = _result(id_, call, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        if not self.supports_get_result:
            return super().get_result(result_id)
        backend = self._app.backend
        call = backend.get_task_meta(_call_id(result_id), cache=False)["result"]
        if not isinstance(call, dict):
            raise TaskResultDoesNotExist(result_id)
        return _joined(_result(result_id, call), backend.get_task_meta(result_id, cache=False))


def _call_id(result_id: str) -> str:
    return f"{result_id}.call"


def _result(id_: str, call: dict[str, Any], task: Task[Any, Any] | None = None) -> TaskResult[Any, Any]:
    """Return the result of a call that has not begun."""
    if task is None:
        run_after = call["run_after"] and datetime.fromisoformat(call["run_after"])
        task = import_string(call["task"]).using(queue_name=call["queue"], run_after=run_after, backend=call["backend"])
    return TaskResult(
        task=task,
        id=id_,
        status=TaskResultStatus.READY,
        enqueued_at=datetime.fromisoformat(call["enqueued_at"]),
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=call["args"],
        kwargs=call["kwargs"],
        backend=call["backend"],
        errors=[],
        worker_ids=[],
    )


def _set(result: TaskResult[Any, Any], **values: Any) -> TaskResult[Any, Any]:
    for name, value in values.items():  # a result is frozen, and its return value is no argument
        object.__setattr__(result, name, value)
    return result


def _joined(result: TaskResult[Any, Any], run: dict[str, Any]) -> TaskResult[Any, Any]:
    """Return a result with what Celery's record of its run says."""
    status, found = STATUS.get(run["status"], TaskResultStatus.FAILED), run["result"]
    if status == TaskResultStatus.RUNNING:
        return _set(result, status=status, worker_ids=[found["hostname"]])
    if status == TaskResultStatus.SUCCESSFUL:
        started_at, finished_at = (datetime.fromisoformat(found[name]) for name in ("started_at", "finished_at"))
        times = {"started_at": started_at, "last_attempted_at": started_at, "finished_at": finished_at}
        return _set(result, status=status, worker_ids=[found["worker"]], _return_value=found["value"], **times)
    if status == TaskResultStatus.FAILED:
        done: Any = run.get("date_done")
        at = datetime.fromisoformat(done) if isinstance(done, str) else done
        return _set(result, status=status, finished_at=at, errors=[_error(found, run.get("traceback"))])
    return result


def _error(error: BaseException, traceback: str | None = None) -> TaskError:
    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback=traceback or f"{kind.__name__}: {error}",
    )


@shared_task(name=NAME, bind=True, track_started=True, ignore_result=False)
def run(self: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Run a task of Django; the result has its value, its times and its worker."""
    id_, worker, started_at = self.request.id, self.request.hostname, timezone.now()
    result = _result(id_, call)
    backend = task_backends[call["backend"]]
    if backend.supports_get_result:
        self.backend.store_result(_call_id(id_), call, states.PENDING)
    times = {"started_at": started_at, "last_attempted_at": started_at}
    _set(result, status=TaskResultStatus.RUNNING, worker_ids=[worker], **times)
    task_started.send(type(backend), task_result=result)
    context: tuple[Any, ...] = (TaskContext(task_result=result),) if result.task.takes_context else ()
    try:
        value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
    except BaseException as error:
        _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now(), errors=[_error(error)])
        task_finished.send(type(backend), task_result=result)
        raise
    finished_at = timezone.now()
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=finished_at, _return_value=value)
    task_finished.send(type(backend), task_result=result)
    return {
        "value": value,
        "started_at": started_at.isoformat(),
        "finished_at": finished_at.isoformat(),
        "worker": worker,
    }
