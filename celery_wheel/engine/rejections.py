"""Rejections in the log: one line for all messages of a kind, at most one in LOG_EVERY_MS, however many there are.

::

    unreadable   the scheduler cannot read the message: too large, no envelope, of another version
    unique       another pending task has the unique key, and ``on_conflict`` is "reject"
    broker       the broker did not accept the task, or the task has no destination
    id           another task has the message's id: the message is accepted under an id of its own, not rejected

    add  any thread, after the commit or the broker's answer     log  the shard's ``tend`` job, twice a second

The rejected messages are in the store, each with its reason; a line has their number and the first of them.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

logger = logging.getLogger(__name__)

LOG_EVERY_MS = 10_000

UNREADABLE, BY_UNIQUE, BY_BROKER, OF_ANOTHER = "unreadable", "unique", "broker", "id"

REJECTED = "shard %d: rejected messages (%s): %d; %s: %s; celery -A proj wheel rejected lists them"
RENAMED = (
    "shard %d: messages accepted under other ids (%s): %d; %s: %s; correct the producer, which must give "
    "each message an id of its own"
)


@dataclass(slots=True)
class _Unlogged:
    count: int
    reason: str
    task: str
    task_id: str


class Rejections:
    """Rejections of one shard that are not in the log yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unlogged: dict[str, _Unlogged] = {}
        self._quiet_until_ms: dict[str, int] = {}

    def add(self, kind: str, count: int, reason: str, task: str = "", task_id: str = "") -> None:
        """Note some rejections; reason, task and task id are of the first of them."""
        with self._lock:
            self._unlogged.setdefault(kind, _Unlogged(0, reason, task, task_id)).count += count

    def log(self, shard: int, monotonic_ms: int) -> None:
        """Log the kinds whose last line is long ago."""
        with self._lock:
            ready = [kind for kind in self._unlogged if self._quiet_until_ms.get(kind, 0) <= monotonic_ms]
            found = {kind: self._unlogged.pop(kind) for kind in ready}
            self._quiet_until_ms |= dict.fromkeys(ready, monotonic_ms + LOG_EVERY_MS)
        for kind, one in found.items():
            logger.log(
                logging.INFO if kind == BY_UNIQUE else logging.WARNING,
                RENAMED if kind == OF_ANOTHER else REJECTED,
                shard,
                kind,
                one.count,
                f"the first is of task {one.task} {one.task_id}".rstrip() if one.task else "the first",
                one.reason,
                extra={
                    "action": "rejected",
                    "shard": shard,
                    "kind": kind,
                    "count": one.count,
                    "task": one.task,
                    "task_id": one.task_id,
                    "reason": one.reason,
                },
            )
