"""Bulk actions: the commands that begin, stop, continue and discard one, and the steps of a shard's part.

::

    begin ─► count   LOOKED_AT rows of a lane at a time                   a commit: the number so far, and the place
             change  ROWS_AT_ONCE matching rows: taken out, as by a       a commit: the rows, their outcomes, the number
                     command that names them                              by result, the place, the log's entry
             end     no row is left                                       the last commit also has the counts in the log

One step is in each round of ingest, after the commands of the inbox, so a stop takes effect before the next step. The
running action with the oldest last step has its turn. The rows of a step are reserved until its commit, which takes
10 to 30 ms: a task that is due meanwhile is dispatched between two steps.

A row's result is ``done``, or ``too_late`` where it was published or may have been, and for a requeue where it cannot
be read. A row that was counted and does not match any more when its turn comes has no result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence

from celery_wheel.engine.commands import (
    DONE,
    TOO_LATE,
    UNKNOWN,
    publish_again,
    readable_among,
    relocate,
)
from celery_wheel.engine.intake.inbox import BulkCommand
from celery_wheel.engine.round import Context, make_call
from celery_wheel.engine.state.shard import ShardState
from celery_wheel.engine.unit_of_work import Retirement, UnitOfWork
from celery_wheel.store import model
from celery_wheel.store.audit_model import MACHINES, PROGRAM, AuditEntry
from celery_wheel.store.bulk_model import (
    DISCARDED,
    FINISHED,
    RUNNING,
    STOPPED,
    BulkPart,
    BulkProgress,
    BulkRows,
)
from celery_wheel.store.model import Row
from celery_wheel.values.ids import uuid7
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Rows that one step changes: with 500, and other work on the cores, tasks that were due meanwhile were 0.8 s late.
ROWS_AT_ONCE = 200

#: Command → the states of a part that it changes, and the state after it.
_CHANGES = {
    "stop": ((RUNNING,), STOPPED),
    "continue": ((STOPPED,), RUNNING),
    "discard": ((RUNNING, STOPPED), DISCARDED),
}


def change_bulk(ctx: Context, state: ShardState, command: BulkCommand) -> Generator[str, None, bool]:
    """Carry out a command; returns True, since it never stays in the inbox."""
    part, now_ms = ctx.store.next_bulk(ctx.shard, command.action), ctx.clock.now_ms()
    yield "part read"
    with state.active():
        work = UnitOfWork(state, now_ms)
        if command.request is not None:
            concerned = command.request.criteria.shard in (None, ctx.shard)
            result = DONE if part is None and concerned else UNKNOWN
            if result == DONE:
                begun = BulkPart(command.request, ctx.shard, RUNNING, BulkProgress(state.seq), now_ms)
                work.change.bulks = [begun.stored]
        elif part is None:
            result = UNKNOWN
        else:
            before, after = _CHANGES[command.do]
            result = DONE if part.state in before else TOO_LATE
            if result == DONE:
                work.change.bulks = [part.with_state(after, now_ms).stored]
        work.answer(command, {command.action: result})
        work.reserve()
    yield from work.commit(ctx)
    return True


def carry_on(ctx: Context, state: ShardState) -> Generator[str, None, bool]:
    """Carry out the next step of a running action; returns False without one, or where its rows have to wait."""
    part = ctx.store.next_bulk(ctx.shard)
    if part is None:
        return False
    step = _BulkStep(ctx, state, part)
    if not part.progress.is_counted:
        steps = step.count()
    elif part.request.verb == model.REQUEUE:
        with state.history:
            steps = step.requeue()
            make_call(steps)  # the commit, before rows can be forgotten
        yield "committed under the history lock"
    else:
        found = step.change()
        if found is None:
            return False
        steps = found
    yield "step reserved"
    if (yield from steps):
        step.committed()
    return True


class _BulkStep:
    """One step of a part: its change, and the part after it."""

    def __init__(self, ctx: Context, state: ShardState, part: BulkPart) -> None:
        self._ctx, self._state, self._part = ctx, state, part
        self._request, self._progress = part.request, part.progress
        self._results: dict[int, str] = {}  #: id of a row → its result
        self._now_ms = ctx.clock.now_ms()

    def count(self) -> Generator[str, None, bool]:
        found = self._ctx.store.bulk_rows(self._part, None)
        progress = self._progress
        progress.found, progress.after = progress.found + found.number, found.after
        progress.is_counted = found.after is None
        is_over = progress.is_counted and not progress.found
        with self._state.active():
            return self._conclude(UnitOfWork(self._state, self._now_ms), [], FINISHED if is_over else RUNNING)

    def change(self) -> Generator[str, None, bool] | None:
        """Cancel or move the next rows; returns the steps of the commit, or None where a row is about to move."""
        ctx, state = self._ctx, self._state
        with state.active():
            mark = state.mark()
        found = ctx.store.bulk_rows(self._part, ROWS_AT_ONCE)
        rows = ctx.store.bulk_task_rows(found.ids)
        with state.active():
            if state.may_be_diverted(rows, mark):
                return None
            work = UnitOfWork(state, self._now_ms)
            for row in rows:
                self._results[row.id] = DONE if work.take_out(row) else TOO_LATE
            request = self._request
            for row in work.rows:
                if request.verb == model.CANCEL:
                    work.cancel(row, Retirement("cancelled", request.reason, request.actor))
                else:
                    relocate(work, row, request.eta_ms, request.reason, request.actor)
            return self._step(work, rows, found)

    def requeue(self) -> Generator[str, None, bool]:
        """Dispatch the next rows now; the caller holds the lock of the history."""
        ctx, request = self._ctx, self._request
        found = ctx.store.bulk_rows(self._part, ROWS_AT_ONCE)
        rows = [row for row in ctx.store.bulk_task_rows(found.ids) if row.lane == model.STOPPED]
        wanted = [row for row in rows if row.route.exchange or row.route.routing_key]
        readable = readable_among(ctx, rows) if request.outcome == "rejected" else []
        in_doubt = ctx.delivery.prepares and request.outcome == "rejected"
        with self._state.active():
            work = UnitOfWork(self._state, self._now_ms)
            redelivered = {row.id for row in wanted if in_doubt}
            publish_again(work, wanted, redelivered, readable, request.reason, request.actor)
            done = {row.id for row in (*wanted, *(row for row, _ in readable))}
            self._results = {row.id: DONE if row.id in done else TOO_LATE for row in rows}
            return self._step(work, rows, found)

    def _step(self, work: UnitOfWork, rows: Sequence[Row], found: BulkRows) -> Generator[str, None, bool]:
        problems = [(row.task_id, self._results[row.id]) for row in rows if self._results[row.id] != DONE]
        self._progress.add(Counter(self._results[row.id] for row in rows), problems, found.after)
        return self._conclude(work, rows, RUNNING if found.after is not None else FINISHED)

    def _conclude(self, work: UnitOfWork, rows: Sequence[Row], state: str) -> Generator[str, None, bool]:
        """Write the part and its entries of the audit log; returns the steps of the commit. The caller holds the lock
        of the state."""
        self._part = self._part.with_state(state, self._now_ms)
        work.change.bulks = [self._part.stored]
        names = {row.task_id: self._results[row.id] for row in rows if row.task_id}
        if self._request.origin in MACHINES:
            names = {name: result for name, result in names.items() if result == DONE}
        if names and (self._request.origin != PROGRAM or self._ctx.limits.audit_programs):
            work.change.audits.append(self._entry(self._request.word, names))
        if state == FINISHED:
            progress = self._progress
            counts = {"found": progress.found, **progress.results, "shard": self._ctx.shard}
            work.change.audits.append(self._entry("bulk_end", {self._request.action: counts}))
        work.reserve()
        return work.commit(self._ctx)

    def _entry(self, action: str, results: Mapping[str, object]) -> AuditEntry:
        request = self._request
        about = request.origin or "unknown", request.actor, action, request.reason
        details = json.dumps({} if request.eta_ms is None else {"eta_ms": request.eta_ms})
        return AuditEntry(uuid7(), self._now_ms, *about, details, request.action, json.dumps(results))

    def committed(self) -> None:
        ctx, request, part = self._ctx, self._request, self._part
        done = sum(result == DONE for result in self._results.values())
        if done:
            ctx.stats.add(**{"cancelled" if request.verb == model.CANCEL else "moved": done})
        if part.state == FINISHED:
            logger.info(
                "shard %d: the bulk action %s (%s) by %s is finished: %s of %d",
                ctx.shard,
                request.action,
                request.word,
                request.actor,
                part.progress.results,
                part.progress.found,
                extra={"action": "bulk", "shard": ctx.shard, "bulk": request.action, "results": part.progress.results},
            )
