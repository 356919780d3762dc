"""Drain into a file, which is complete, on disk and under its name before the store retires a task or a schedule.

::

    ingest ─► count ─► <file>.part ─ fsync ─► <file> ─ fsync of the folder ─► outcome "moved" of the rows
                                                                          └─► schedules removed, with a revision

A drain killed before the file has its name has changed nothing. After a kill at a later moment, the next drain to the
same file finds it complete, writes no task again, and retires the file's tasks that are still pending.
``dispatched_since`` counts tasks that a scheduler has dispatched in between: the file has them all the same. A schedule
that has changed or made an occurrence in between stays in the store.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from celery_wheel.errors import FileUnusable, WheelError
from celery_wheel.operations.drain.hold import ShardHold
from celery_wheel.operations.drain.record import (
    DrainedSchedule,
    DrainedTask,
    DrainHeader,
    header_of,
    line_of,
    schedule_line_of,
    schedule_of,
    task_of,
)
from celery_wheel.operations.drain.result import DrainResult, Progress
from celery_wheel.store.model import STOPPED, Change
from celery_wheel.store.schedule_model import revised
from celery_wheel.store.store_model import ShardEpoch

ROWS_AT_ONCE, SCHEDULES_AT_ONCE = 1_000, 500


def drain_to_file(
    hold: ShardHold,
    file: Path,
    header: DrainHeader | None,
    include: Collection[str],
    done: DrainResult,
    progress: Progress,
) -> None:
    """Write the tasks, retire them, and add the counts to ``done``; ``header`` is that of ``earlier_header``."""
    for engine in hold.engines:
        done.accepted += hold.ingest(engine.shard)
        done.rejected += engine.stats.rejected
    held = [hold.end_engine(engine.shard) for engine in hold.engines]
    done.resumed = header is not None
    if header is None:
        header = _write(hold, file, include, progress)
    done.in_file, done.schedules = header.count, header.schedules
    _retire(hold, held, file, header, done, progress)
    _remove_schedules(hold, held, file, header)


def earlier_header(file: Path, store: str) -> DrainHeader | None:
    """Return the header of a file that a drain of this store has written; None where there is no file.

    Raises FileUnusable for any other file.
    """
    if not file.exists():
        return None
    with file.open("rb") as lines:
        header = header_of(lines.readline(), str(file))
        if header.store != store:
            raise FileUnusable(
                f"{file} must be new, or of this store, got one of store {header.store}; nothing was done; name another"
            )
        count = sum(1 for _ in lines)
    if count != header.lines:
        raise FileUnusable(
            f"{file} must have the {header.lines:,} tasks and schedules that its header names, got {count:,}; nothing "
            "was done; it was changed since: name another file"
        )
    return header


def _write(hold: ShardHold, file: Path, include: Collection[str], progress: Progress) -> DrainHeader:
    """Raises FileUnusable where the folder does not exist, may not be written to, or has no room."""
    store, shards = hold.store, range(hold.store.shards)
    count = sum(store.handover.count_pending(shard) + store.handover.count_stopped(shard, include) for shard in shards)
    schedules = sum(store.handover.count_schedules(shard) for shard in shards)
    header = DrainHeader(str(uuid.uuid4()), store.uuid, count, hold.clock.now_ms(), schedules)
    try:
        _write_lines(hold, file, header, _lines(hold, include), progress)
    except WheelError:  # of the store; some are OSErrors too
        raise
    except OSError as error:
        raise FileUnusable(
            f"{file} must be in a folder that can be written to, got {error.strerror or error}; no task was moved; "
            "name another file, or make room"
        ) from error
    return header


def _write_lines(hold: ShardHold, file: Path, header: DrainHeader, lines: Iterator[bytes], progress: Progress) -> None:
    part = file.with_name(file.name + ".part")
    # Arguments of tasks are confidential: only the owner may read them.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(header.line())
        number = 0
        for number, line in enumerate(lines, start=1):
            out.write(line)
            if number % ROWS_AT_ONCE == 0:
                hold.check()
                progress("written", number, header.lines)
        if number != header.lines:
            raise FileUnusable(
                f"{part} must have {header.lines:,} tasks and schedules, got {number:,}: another process wrote to the "
                "store; no task was moved; stop all schedulers and run this again"
            )
        out.flush()
        os.fsync(out.fileno())
    part.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    progress("written", header.lines, header.lines)


def _lines(hold: ShardHold, include: Collection[str]) -> Iterator[bytes]:
    handover, shards = hold.store.handover, range(hold.store.shards)
    for shard in shards:
        yield from map(line_of, chain(handover.pending(shard), handover.stopped(shard, include)))
    for shard in shards:
        yield from map(schedule_line_of, handover.schedules(shard))


def _retire(
    hold: ShardHold, held: list[ShardEpoch], file: Path, header: DrainHeader, done: DrainResult, progress: Progress
) -> None:
    """Give the file's tasks the outcome "moved", and move the offsets of empty shards back to now."""
    store, reason = hold.store, f"written to {file.name}, drain {header.drain}"
    ids: dict[int, list[int]] = defaultdict(list)
    number = pending = 0

    def flush() -> None:
        for shard, rows in ids.items():
            hold.check()
            done.moved += store.handover.mark_moved(held[shard], rows, reason)
        ids.clear()
        progress("moved", number, header.count)

    for number, task in enumerate(_tasks(file, header), start=1):
        ids[task.shard].append(task.row)
        pending += task.outcome is None
        if number % ROWS_AT_ONCE == 0:
            flush()
    flush()
    if done.resumed and done.moved < pending:  # a row that was dispatched is in another lane than STOPPED
        done.dispatched_since = sum(
            any(row.lane != STOPPED for row in store.rows(task.shard, [task.row])) for task in _tasks(file, header)
        )
    for one in held:
        for lane, offset in store.handover.offsets_to_correct(one.shard, one.now_ms).items():
            state = next(state for state in store.lanes(one.shard) if state.lane == lane)
            if not store.handover.count_pending(one.shard):
                store.apply(one.shard, one.epoch, Change(lanes=[replace(state, offset=offset, watermark=offset)]))


def _remove_schedules(hold: ShardHold, held: list[ShardEpoch], file: Path, header: DrainHeader) -> None:
    """Remove the file's schedules that are as the file has them."""
    reason, by_shard = f"written to {file.name}, drain {header.drain}", defaultdict[int, list[DrainedSchedule]](list)
    for one in _schedules(file, header):
        by_shard[one.shard].append(one)
    for shard in held:
        schedules = by_shard[shard.shard]
        for start in range(0, len(schedules), SCHEDULES_AT_ONCE):
            hold.check()
            _remove(hold, shard, schedules[start : start + SCHEDULES_AT_ONCE], reason)


def _remove(hold: ShardHold, shard: ShardEpoch, written: list[DrainedSchedule], reason: str) -> None:
    stored = {one.id: one for one in hold.store.schedules_named(shard.shard, [one.schedule.name for one in written])}
    same = [one.schedule for one in written if stored.get(one.schedule.id) == one.schedule]
    revisions = [revised(one, "deleted", "drain", reason, shard.now_ms)[1] for one in same]
    if same:
        change = Change(removed_schedules=[one.id for one in same], revisions=revisions)
        hold.store.apply(shard.shard, shard.epoch, change)


def _tasks(file: Path, header: DrainHeader) -> Iterator[DrainedTask]:
    with file.open("rb") as lines:
        yield from map(task_of, islice(lines, 1, 1 + header.count))


def _schedules(file: Path, header: DrainHeader) -> Iterator[DrainedSchedule]:
    with file.open("rb") as lines:
        yield from map(schedule_of, islice(lines, 1 + header.count, None))
