"""Revokes, from the node's ear into the store.

::

    revoke             ids ─► a cancel command in the inbox of every shard; from then on it survives whatever happens
                        └ the store does not answer: kept in memory, MOST_KEPT commands, and put there later
    by stamped headers     remembered in memory (``engine.stamps``) for what comes from now on
                        └ what waits already: a scan of the held shards, SCANNED tasks of each, the next due first

Every scheduler that hears of a revoke writes it down for all shards, held or not: in the seconds after a crash nobody
holds the dead one's, and to cancel twice is to cancel once.

A shard that comes to be held here is scanned for the stamps that are remembered: its former holder may not have been
through. A scan keeps no place in the store: a crash during it is made up for only by that.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from celery_wheel.broker.envelope import MAX_TEXT
from celery_wheel.engine.stamps import BY_STAMP
from celery_wheel.errors import StoreError
from celery_wheel.node.view import View
from celery_wheel.request import TASKS_AT_ONCE
from celery_wheel.store import browse
from celery_wheel.store.browse import Criteria
from celery_wheel.store.model import CANCEL, ORIGIN

logger = logging.getLogger(__name__)

#: Commands kept while the store does not answer.
MOST_KEPT = 1_000

#: Waiting tasks of a shard that a revoke by stamps looks at.
SCANNED = 1_000_000

PAGE = 1_000


class Revoking:
    def __init__(self, view: View) -> None:
        self._view = view
        self._kept: deque[bytes] = deque(maxlen=MOST_KEPT)
        self._putting = threading.Lock()
        self._known: set[int] = set()  #: shards that were held at the last look
        self._to_scan: set[int] = set()
        self._wake = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None

    # -- by id -----------------------------------------------------------------------------------------

    def revoke(self, task_ids: Iterable[Any], reason: str = "revoked") -> list[str]:
        """Write it down; raises StoreError where that has to wait. Returns the ids that can be of tasks."""
        usable = sorted({one for one in task_ids if _is_id(one)})
        for start in range(0, len(usable), TASKS_AT_ONCE):
            part = usable[start : start + TASKS_AT_ONCE]
            command = {"task_ids": part, "reason": reason, "actor": "control", "for_good": True}
            self._kept.append(json.dumps(command).encode())
        self.put()
        return usable

    def put(self) -> None:
        """Write down what was kept."""
        with self._putting:
            while self._kept:
                for shard in range(self._view.store.shards):
                    self._view.store.put_inbox(shard, [(CANCEL, self._kept[0])])
                self._kept.popleft()

    # -- by stamps ---------------------------------------------------------------------------------------

    def revoke_stamps(self, headers: Mapping[str, Any]) -> None:
        self._view.stamps.add(headers)  # before the scan: what comes meanwhile is met by one or the other
        self._scan_soon(self._view.held())

    def look(self) -> None:
        """To be called about once a second: what could not be done before is tried again."""
        held = set(self._view.held())
        if self._view.stamps and held - self._known:
            self._scan_soon(held - self._known)
        self._known = held
        if self._kept:
            try:
                self.put()
            except StoreError as error:
                logger.warning("%s; %d revokes wait for it", error, len(self._kept), extra={"action": "revoke_kept"})

    def _scan_soon(self, shards: Iterable[int]) -> None:
        self._to_scan |= set(shards)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wheel-stamps", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._stop = True
        self._wake.set()

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait()
            self._wake.clear()
            while self._to_scan and not self._stop:
                shard = self._to_scan.pop()
                try:
                    self.scan(shard)
                except StoreError as error:
                    logger.warning("%s; shard %d is scanned again", error, shard, extra={"action": "stamps_failed"})
                    self._to_scan.add(shard)
                    threading.Event().wait(1)

    def scan(self, shard: int) -> int:
        """Cancel what waits and has a revoked stamp; returns how many were looked at."""
        view, after, seen = self._view, ORIGIN, 0
        while not self._stop:
            began_s = time.monotonic()
            page = browse.pending(view.store, Criteria(shard=shard), after, PAGE)
            heads = browse.heads(view.store, [task.id for task in page.items])
            there = (task for task in page.items if task.id in heads)
            found = [task.task_id for task in there if view.stamps.match(heads[task.id].headers)]
            if found:
                self.revoke(found, BY_STAMP)
            seen += len(page.items)
            if page.next is None:
                break
            if seen >= SCANNED:
                logger.warning(
                    "a revoke by stamped headers looked at %d tasks of shard %d, the next due; the later ones wait on",
                    seen,
                    shard,
                    extra={"action": "stamps_cut", "shard": shard},
                )
                break
            after = page.next
            time.sleep(time.monotonic() - began_s)  # half of the time is for the threads that dispatch
        return seen


def _is_id(one: Any) -> bool:
    if not isinstance(one, str) or not 0 < len(one) <= MAX_TEXT or "\0" in one:
        return False
    try:
        one.encode()
    except UnicodeEncodeError:
        return False
    return True
