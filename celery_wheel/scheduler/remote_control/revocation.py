"""Revokes: from a broadcast that the node hears into the store.

A revoke by ids is a cancel command in the inbox of every shard, which is durable. Where the store does not answer,
MAX_KEPT ids are kept in memory and written later together, and more are refused; the answer to the broadcast says
which. Revoked stamps are kept in memory for messages that arrive from now on, and the held shards are scanned,
MAX_SCANNED pending tasks of each, the next due first.

Every scheduler that hears a revoke writes it for all shards: in the seconds after a crash no scheduler holds the dead
one's shards, and a second cancel changes nothing. A scheduler scans a shard that it acquires for the stamps in its
memory: the former holder may not have finished its scan, which keeps no position in the store.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

from celery_wheel.engine.state.tombstones import BY_STAMP
from celery_wheel.errors import StoreError
from celery_wheel.requests.request import TASKS_AT_ONCE
from celery_wheel.scheduler.remote_control import SchedulerView
from celery_wheel.store.audit_model import CONTROL, AuditEntry, Operator, store_entry
from celery_wheel.store.model import CANCEL, ORIGIN, NewItem
from celery_wheel.store.ports.pages import Criteria
from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.values import parts
from celery_wheel.values.error_text import error_place
from celery_wheel.values.ids import uuid7
from celery_wheel.values.instants import now_ms
from celery_wheel.values.log import get_logger
from celery_wheel.values.text import text_rule

logger = get_logger(__name__)

#: Ids kept while the store does not answer: 20 MB of UUIDs.
MAX_KEPT = 100_000

#: Entries of the audit log that are kept then, of at most some kB each.
MAX_UNRECORDED = 10_000

#: Pending tasks of a shard that a revoke by stamps scans.
MAX_SCANNED = 1_000_000

PAGE = 1_000

#: Names of stamped headers that the audit log has of a revoke; their values may be a project's own data.
MAX_STAMPS = 20

#: Seconds until a scan that the store did not answer is tried again.
RETRY_FIRST_S, RETRY_MOST_S = 1.0, 30.0


def cancel_commands(
    task_ids: Sequence[str], reason: str, actor: str, origin: str, shards: int
) -> dict[int, list[NewItem]]:
    """Return the commands that cancel tasks, also those that arrive later, by shard."""
    found: dict[int, list[NewItem]] = {shard: [] for shard in range(shards)}
    for names in parts(task_ids, TASKS_AT_ONCE):
        command = {"task_ids": names, "reason": reason, "actor": actor, "for_good": True}
        head = {"origin": origin, "request": uuid7(), "at_ms": now_ms()}
        for shard, items in found.items():
            items.append((CANCEL, json.dumps({**command, "audit": {**head, "whole": shard == 0}}).encode()))
    return found


class RevokeListener:
    def __init__(self, view: SchedulerView) -> None:
        self._view = view
        self._kept: dict[str, str] = {}  #: id → reason, in the order in which they came; under the lock
        self._writing = threading.Lock()
        self._known: set[int] = set()  #: shards that were held at the last ``tend``
        self._to_scan: set[int] = set()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._unrecorded: list[AuditEntry] = []  #: revokes by stamps that are not in the audit log yet
        self._log = RetryLog(logger, time.monotonic)
        self._thread: threading.Thread | None = None

    # -- by id -----------------------------------------------------------------------------------------

    def revoke(self, task_ids: Iterable[Any], reason: str = "revoked") -> tuple[list[str], list[Any]]:
        """Write a cancel command; return the ids, and the ignored values. The text of StoreError says what is kept."""
        values = list(task_ids)
        ignored = [one for one in values if text_rule(one) is not None]
        usable = sorted({one for one in values if text_rule(one) is None})
        with self._writing:
            new = [one for one in usable if one not in self._kept]
            self._kept.update(dict.fromkeys(new, reason))
            try:
                self._write()
            except StoreError as error:
                raise self._kept_or_refused(new, error) from error
        return usable, ignored

    def _write(self) -> None:
        while self._kept:
            part = list(islice(self._kept.items(), 20 * TASKS_AT_ONCE))
            items: dict[int, list[NewItem]] = {}
            for reason, pairs in groupby(part, key=lambda one: one[1]):
                ids = [task_id for task_id, _ in pairs]
                for shard, commands in cancel_commands(ids, reason, CONTROL, CONTROL, self._view.store.shards).items():
                    items.setdefault(shard, []).extend(commands)
            self._view.store.put_inboxes(items)
            for task_id, _ in part:
                del self._kept[task_id]
        while self._unrecorded:
            self._view.store.maintenance.record(self._unrecorded[0])
            del self._unrecorded[0]

    def _kept_or_refused(self, new: list[str], error: StoreError) -> StoreError:
        if len(self._kept) <= MAX_KEPT:
            return StoreError(
                f"{error}; {len(self._kept):,} revoked ids are kept in the memory of {self._view.name} and are written "
                "when the store answers; they are lost if the scheduler is killed before"
            )
        refused = [task_id for task_id in new if self._kept.pop(task_id, None) is not None]
        text = (
            f"{error}; {len(refused):,} of {len(new):,} ids were refused and are not revoked: {len(self._kept):,} are "
            f"kept in the memory of {self._view.name}, which keeps {MAX_KEPT:,}; revoke them again when the store "
            "answers"
        )
        logger.error("%s", text, extra={"action": "revoke_refused", "refused": len(refused), "kept": len(self._kept)})
        return StoreError(text)

    def close(self) -> None:
        """Write the kept ids, for the last time."""
        try:
            with self._writing:
                self._write()
        except StoreError as error:
            logger.error(
                "%s; %d revoked ids could not be written and are lost with this scheduler; revoke them again: %s …; "
                "the audit log lacks %d revokes by stamps",
                error,
                len(self._kept),
                ", ".join(islice(self._kept, 5)),
                len(self._unrecorded),
                extra={"action": "revokes_lost", "count": len(self._kept), "unrecorded": len(self._unrecorded)},
            )

    # -- by stamps ---------------------------------------------------------------------------------------

    def revoke_stamps(self, headers: Mapping[str, Any]) -> None:
        """Raises StoreError where the revoke counts, but is in no audit log."""
        self._view.stamps.add(headers)  # before the scan: one of the two meets a message that arrives meanwhile
        self._scan_soon(self._view.held())
        if len(self._unrecorded) >= MAX_UNRECORDED:
            text = (
                f"{self._view.name} revokes them, but the audit log will lack it: {MAX_UNRECORDED:,} of its entries "
                "wait for the store, which does not answer"
            )
            self._log.write(logging.ERROR, "revoke_unrecorded", "%s", text)
            raise StoreError(text)
        asker, stamps = Operator(CONTROL, CONTROL), {"stamps": [*headers][:MAX_STAMPS]}
        done = {self._view.name: "done"}
        self._unrecorded.append(store_entry("revoke_stamps", asker, now_ms(), done, stamps))

    def tend(self) -> None:
        """Scan newly held shards, and write the kept ids and entries; called about once a second."""
        held = set(self._view.held())
        if self._view.stamps and held - self._known:
            self._scan_soon(held - self._known)
        self._known = held
        if self._kept or self._unrecorded:
            try:
                with self._writing:
                    self._write()
            except StoreError as error:
                self._log.write(
                    logging.WARNING,
                    "revoke_kept",
                    "%s; %d revoked ids and %d entries of the audit log are kept until it answers",
                    error,
                    len(self._kept),
                    len(self._unrecorded),
                )

    def _scan_soon(self, shards: Iterable[int]) -> None:
        self._to_scan |= set(shards)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="wheel-stamps", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()

    def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            while self._to_scan and not self._stopped.is_set():
                shard = self._to_scan.pop()
                try:
                    self.scan(shard)
                except Exception as error:  # the thread serves every later revoke as well
                    self._note_failure(shard, error)
                    self._to_scan.add(shard)
                    self._stopped.wait(backoff.failed())
                else:
                    backoff.succeeded()

    def _note_failure(self, shard: int, error: Exception) -> None:
        if isinstance(error, StoreError):
            self._log.write(logging.WARNING, "stamps_failed", "%s; shard %d is scanned again", error, shard)
        else:
            text = "shard %d could not be scanned for revoked stamps (%s), and is scanned again"
            extra = {"action": "stamps_failed"}
            self._log.write(logging.ERROR, "stamps_broken", text, shard, error_place(error), extra=extra)

    def scan(self, shard: int) -> int:
        """Cancel pending tasks that have a revoked stamp; return the number of scanned tasks."""
        view, after, seen = self._view, ORIGIN, 0
        while not self._stopped.is_set():
            began_s = time.monotonic()
            page = view.store.browse.pending(Criteria(shard=shard), after, PAGE)
            heads = view.store.browse.heads([task.id for task in page.items])
            there = (task for task in page.items if task.id in heads)
            found = [task.task_id for task in there if view.stamps.match(heads[task.id].headers)]
            if found:
                self.revoke(found, BY_STAMP)
            seen += len(page.items)
            if page.next is None:
                break
            if seen >= MAX_SCANNED:
                logger.warning(
                    "a revoke by stamped headers scanned %d tasks of shard %d, the next due; later tasks stay pending",
                    seen,
                    shard,
                    extra={"action": "stamps_cut", "shard": shard},
                )
                break
            after = page.next
            time.sleep(time.monotonic() - began_s)  # half of the time is for the threads that dispatch
        return seen
