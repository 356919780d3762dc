"""Traffic: tasks that are sent one by one while a test kills, starts and moves schedulers."""

from __future__ import annotations

import threading

from tests.kit.patience import wait_until
from tests.kit.stack import Stack

COUNTDOWN_S, EVERY_S = 0.3, 0.05


class Traffic:
    """Sends 20 tasks a second, due 0.3 s later, until the context ends."""

    def __init__(self, stack: Stack) -> None:
        self.sent: set[str] = set()  #: task ids
        self.arrived: set[str] = set()
        self._stack = stack
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(EVERY_S):
            n += 1
            self._stack.app.send_task("note", (n,), countdown=COUNTDOWN_S, task_id=f"task-{n}")
            self.sent.add(f"task-{n}")
            self.arrived.update(self._stack.dispatched())

    def wait_for_all(self) -> None:
        """Wait until each task that was sent so far is dispatched, once."""
        sent = set(self.sent)
        wait_until(lambda: sent <= set(self._stack.dispatched()), "all tasks are dispatched")
        found = self._stack.dispatched()
        assert len(found) == len(set(found)), "a task was dispatched twice"

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
