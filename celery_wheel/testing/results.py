"""Results in memory: Celery's own cache backend, with a dictionary for each test, and without waiting.

In virtual time, waiting does not bring a result. So ``result.get()`` runs all due tasks, as a worker would meanwhile,
and then returns the result, or raises an error with the task's due time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery import states
from celery.backends.cache import CacheBackend
from celery.exceptions import TimeoutError as NotReady
from kombu.utils.functional import LRUCache


class MemoryResults(CacheBackend):  # type: ignore[misc]  # celery carries no types
    """The backend of one test.

    Args:
        run_due: runs due tasks.
        describe: returns a sentence about the task of an id.
    """

    thread_safe = True

    def __init__(self, app: Any, run_due: Callable[[], object], describe: Callable[[str], str]) -> None:
        super().__init__(app=app, backend="memory", url="memory://")
        self.client.cache = LRUCache()  # type: ignore[no-untyped-call]  # Celery's is shared by the whole process
        self._run_due = run_due
        self._describe = describe

    def wait_for(self, task_id: str, *args: Any, **options: Any) -> Any:
        self._run_due()
        return self._ready(task_id)

    def get_many(self, task_ids: Iterable[str], *args: Any, **options: Any) -> Iterator[Any]:
        ids = list(task_ids)
        self._run_due()
        for task_id in ids:
            self._ready(task_id)
        found: Iterator[Any] = super().get_many(ids, *args, **options)
        return found

    def _ready(self, task_id: str) -> Any:
        meta = self.get_task_meta(task_id)
        if meta["status"] not in states.READY_STATES:
            raise NotReady(
                f"task {task_id} has no result, and waiting brings none: {self._describe(task_id)}; call "
                "wheel.advance(…) or wheel.run_all() first"
            )
        return meta
