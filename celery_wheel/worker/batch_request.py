"""The request of a message of a batch in the worker's main process: it ends the calls that the pool's process cannot.

A file of its own: a producer that imports ``Batches`` need not import Celery's worker.
"""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import Reject, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from celery_wheel.worker.batches import is_message, open_call, stores_result

#: Exceptions after which no process will end the calls, unless the message returns to its queue.
_FINAL = (WorkerLostError, SystemExit, KeyboardInterrupt, Reject)


class BatchRequest(Request):  # type: ignore[misc]  # celery carries no types
    _returns = False  #: the message is in its queue again

    def reject(self, requeue: bool = False) -> None:
        self._returns |= requeue
        super().reject(requeue=requeue)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._fail_calls(TimeLimitExceeded(timeout))

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        found = super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        if isinstance(error, _FINAL):
            self._fail_calls(error)
        return found

    def _fail_calls(self, error: BaseException) -> None:
        """Store the failure of each call; a result that a call has already stays."""
        if self._returns or not is_message(self._context):
            return
        for member in self.args[0]:
            call = open_call(self.task, self._context, *member)
            stored = stores_result(self.task, call) or self.task.store_errors_even_if_ignored
            self.task.backend.mark_as_failure(call.id, error, request=call, store_result=stored)
