"""Erase: remove all that the store has of a task, a key, a group or a schedule, a part in each round of ingest.

::

    1 begin     every message that was sent before is accepted; rows that are accepted later are not erased
    2 audit     entries of the audit log that name the value, or a task of it
    3 rows      pending      taken out as by a cancel, and removed in the same commit: it will not be published
                history      removed under the lock of the history, as housekeeping does
                in between   it may be published, or an adoption may compare it with the broker: its id is kept
    4 waiting   the kept ids, once they are settled
    5 scrub     the dictionary that may have learnt from the rows, and the database's log; before the answer, so that
                the next holder does it after a crash
    6 end       limits and pause of the group, revisions and skips of the schedule, texts of a tombstone; the answer

Each part is a commit that also writes the progress into the command's inbox item. So an erasure goes on after a crash
or a takeover, also where its asker is gone, and no other command waits for it. Erased rows are not announced: their
events would take the data elsewhere. A dispatch is not stopped, since a part removes ROWS_AT_ONCE rows at most.

Non-promises: a copy of a message that a broker delivers again, because a connection broke at the acknowledgement, is a
new message after the erasure. The queues of the tasks and the result backend are not read.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from celery_wheel.engine.commands import earlier_are_accepted, is_closed
from celery_wheel.engine.intake.inbox import Erasure
from celery_wheel.engine.round import Context, make_call
from celery_wheel.engine.state.gates import GROUP
from celery_wheel.engine.state.shard import Mark, ShardState
from celery_wheel.engine.unit_of_work import UnitOfWork
from celery_wheel.store.erasure_model import ENTRIES, HISTORY, PENDING, REVISIONS, SKIPS, ErasureProgress
from celery_wheel.store.model import STOPPED, WAITING, PassedOn, Row
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: Rows of one part, as of a transaction of ``forget``.
ROWS_AT_ONCE = 500

#: Rows that wait to be settled; with more, the next part waits too. A chunk of each lane is under way at most.
MAX_WAITING = 10_000


def erase(ctx: Context, state: ShardState, command: Erasure, empty_at_ms: int | None) -> Generator[str, None, bool]:
    """Carry out a part; returns False where there is nothing to do before messages are accepted or settled."""
    if command.progress is None and not earlier_are_accepted(ctx, state, command.item_id, empty_at_ms):
        return False
    part = _Part(ctx, state, command)
    if part.progress.is_over:
        if part.progress.counts[PENDING] or part.progress.counts[HISTORY]:  # else no dictionary has learnt from a row
            ctx.store.scrub()
        part.is_last = True
        yield "scrubbed"
    if part.progress.audit is not None:
        part.erase_entries(part.progress.audit)
        yield "entries found"
        with state.active():
            steps = part.conclude()
    else:
        with state.history:
            found = part.rows()
            if not found:
                return False
            steps = found
            make_call(steps)  # the commit, before rows can be forgotten
        yield "committed under the history lock"
    if (yield from steps):
        part.committed()
    return True


class _Part:
    """One part of an erasure: its change and the progress after it."""

    def __init__(self, ctx: Context, state: ShardState, command: Erasure) -> None:
        self._ctx, self._state, self._command = ctx, state, command
        self._which = command.which
        self._work = UnitOfWork(state, ctx.clock.now_ms())
        with state.active():
            self.progress = command.progress or ErasureProgress(state.seq)
        self.is_last = False

    def erase_entries(self, after: int) -> None:
        """Erase a page of the audit log, beginning after an entry."""
        progress = self.progress
        found, progress.audit = self._ctx.store.audited(self._ctx.shard, self._which, after)
        self._work.change.erased_audits = found
        progress.counts[ENTRIES] += len(found)

    def rows(self) -> Generator[str, None, bool] | None:
        """Erase a page of rows; returns the steps of the commit, or None where the rows have to wait. The caller holds
        the lock of the history."""
        ctx, state, progress = self._ctx, self._state, self.progress
        with state.active():
            mark = state.mark()
        is_full = progress.rows is None or len(progress.waiting) > MAX_WAITING
        if is_full:
            ids, progress.waiting = progress.waiting[:ROWS_AT_ONCE], progress.waiting[ROWS_AT_ONCE:]
        else:
            page = ctx.store.erasable(ctx.shard, self._which, progress.rows or 0, progress.upto, ROWS_AT_ONCE)
            ids, progress.rows = page
        rows = ctx.store.rows(ctx.shard, ids)
        with state.active():
            left = self._take(rows, mark)
            progress.waiting += left
            if is_full and left and len(left) == len(rows):
                return None
            return self.conclude()

    def _take(self, rows: Sequence[Row], mark: Mark) -> list[int]:
        """Add the rows that may be erased now to the change; returns the ids of the others."""
        state, work, counts = self._state, self._work, self.progress.counts
        is_unsure, left = state.may_be_diverted((row for row in rows if row.lane != STOPPED), mark), list[int]()
        for row in rows:
            if row.lane == STOPPED or (not is_unsure and is_closed(state, row)):
                kind = HISTORY
            elif not (is_unsure and row.lane == WAITING) and work.take_out(row):
                kind = PENDING
            else:
                left.append(row.id)
                continue
            work.erase(row)
            counts[kind] += 1
        return left

    def conclude(self) -> Generator[str, None, bool]:
        """Write the progress, or after the last part the answer; returns the steps of the commit. The caller holds the
        state's lock."""
        work, command, progress = self._work, self._command, self.progress
        if self.is_last:
            self._end()
            work.answer(command, {command.digest: progress.counts})
        else:
            item = PassedOn(command.item_id, self._ctx.shard, command.with_progress(progress))
            work.change.passed_on.append(item)
        work.reserve()
        return work.commit(self._ctx)

    def _end(self) -> None:
        """Erase all that names the value and is no row."""
        ctx, state, which, change = self._ctx, self._state, self._which, self._work.change
        if which.by == "task_id":  # the id itself stays for a day at most: its message must not be dispatched
            found = ctx.store.tombstones(ctx.shard, [which.value]).values()
            change.tombstones = [replace(one, reason="", actor="") for one in found]
        elif which.by == "group":
            place = (GROUP, which.value)
            change.unlimited, change.opened = [which.value], [place]
            self._work.on_apply(lambda: _release_group(state, place))
        elif which.by == "schedule" and ctx.shard_of(which.value) == ctx.shard:
            revisions, skips = ctx.store.schedule_traces(which.schedules)
            self.progress.counts[REVISIONS], self.progress.counts[SKIPS] = revisions, skips
            change.erased_schedules = [*which.schedules]

    def committed(self) -> None:
        ctx, counts = self._ctx, self.progress.counts
        if not self.is_last:
            return
        ctx.freed.set()
        ctx.wake.set()
        logger.info(
            "shard %d: erased %d pending tasks and %d of the history, as %s asked",
            ctx.shard,
            counts[PENDING],
            counts[HISTORY],
            self._command.actor,
            extra={"action": "erase", "shard": ctx.shard, "actor": self._command.actor, "counts": counts},
        )


def _release_group(state: ShardState, place: tuple[str, str]) -> None:
    state.groups.clear_limit(place[1])
    state.gates.open(place)
    state.groups.gate_opened(place[1])
