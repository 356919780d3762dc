"""Into a file: whole, on disk and under its name before anything is laid to rest in the store.

::

    take in ─► count ─► <file>.part ─ fsync ─► <file> ─ fsync of the folder ─► rows ─► rest, "moved"

Killed before the file has its name: nothing has happened. Killed after it: the next drain to the same file finds it
whole, writes none of it again, and lays to rest what of it waits still. What a scheduler has sent in between, if one
was started, is counted as ``gone``: it is in the file all the same.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from celery_wheel.errors import FileUnusable, WheelError
from celery_wheel.leaving.hold import Holding
from celery_wheel.leaving.progress import Progress
from celery_wheel.leaving.record import Header, header_of, line_of, read
from celery_wheel.store.model import REST, Change
from celery_wheel.store.ports.handover import (
    Hold,
    Kept,
)

ROWS_AT_ONCE = 1_000


@dataclass(slots=True)
class Written:
    lines: int = 0
    moved: int = 0
    taken_in: int = 0
    rejected: int = 0  #: of those taken in: they cannot be read
    resumed: bool = False
    gone: int = 0


def write_out(
    holding: Holding, file: Path, header: Header | None, kinds: Collection[str], progress: Progress
) -> Written:
    """``header`` is that of the file which is there already; see ``earlier``."""
    done = Written()
    for engine in holding.engines:
        done.taken_in += holding.take_in(engine.shard)
        done.rejected += engine.stats.rejected
    holds = [holding.end_engine(engine.shard) for engine in holding.engines]
    if header is None:
        header = _written(holding, file, kinds, progress)
    else:
        done.resumed = True
    done.lines = header.count
    _lay(holding, holds, file, header, done, progress)
    return done


def earlier(file: Path, store: str) -> Header | None:
    """The header of what a drain of this store has written, if there is a file. Raises FileUnusable for any other."""
    if not file.exists():
        return None
    with file.open("rb") as lines:
        header = header_of(lines.readline(), str(file))
        if header.store != store:
            raise FileUnusable(
                f"{file} must be new, or of this store, got one of store {header.store}; nothing was done; name another"
            )
        count = sum(1 for _ in lines)
    if count != header.count:
        raise FileUnusable(
            f"{file} must have the {header.count:,} tasks of which it speaks, got {count:,}; nothing was done; it was "
            "changed since: name another file"
        )
    return header


def _written(holding: Holding, file: Path, kinds: Collection[str], progress: Progress) -> Header:
    """Raises FileUnusable where the folder is not there, may not be written to, or has no room."""
    try:
        return _write(holding, file, kinds, progress)
    except WheelError:  # of the store; some are OSErrors too
        raise
    except OSError as error:
        raise FileUnusable(
            f"{file} must be in a folder that can be written to, got {error.strerror or error}; nothing was laid to "
            "rest; name another, or make room"
        ) from error


def _write(holding: Holding, file: Path, kinds: Collection[str], progress: Progress) -> Header:
    store, shards = holding.store, range(holding.store.shards)
    count = sum(store.handover.count_waiting(shard) + store.handover.count_set_aside(shard, kinds) for shard in shards)
    header = Header(str(uuid.uuid4()), store.uuid, count, holding.clock.now_ms())
    part = file.with_name(file.name + ".part")
    # What tasks are called with is nobody else's business.
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(header.line())
        number = 0
        for number, kept in enumerate(_all(holding, kinds), start=1):
            out.write(line_of(kept))
            if number % ROWS_AT_ONCE == 0:
                holding.check()
                progress("written", number, count)
        if number != count:
            raise FileUnusable(
                f"{part} must have {count:,} tasks, got {number:,}: the store was written to by somebody else; nothing "
                "was laid to rest; stop all schedulers and run this again"
            )
        out.flush()
        os.fsync(out.fileno())
    part.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    progress("written", count, count)
    return header


def _all(holding: Holding, kinds: Collection[str]) -> Iterator[Kept]:
    for shard in range(holding.store.shards):
        yield from holding.store.handover.waiting(shard)
        yield from holding.store.handover.set_aside(shard, kinds)


def _lay(holding: Holding, holds: list[Hold], file: Path, header: Header, done: Written, progress: Progress) -> None:
    """Lay to rest what the file has."""
    store, reason = holding.store, f"written to {file.name}, drain {header.drain}"
    ids: dict[int, list[int]] = defaultdict(list)
    number = waited = 0

    def flush() -> None:
        for shard, rows in ids.items():
            holding.check()
            done.moved += store.handover.rest(holds[shard], rows, reason)
        ids.clear()
        progress("laid to rest", number, header.count)

    with file.open("rb") as lines:
        next(lines)
        for number, line in enumerate(lines, start=1):
            found = read(line)
            ids[found.shard].append(found.row)
            waited += found.set_aside is None
            if number % ROWS_AT_ONCE == 0:
                flush()
    flush()
    done.gone = sum(_left_since(holding, file, header)) if done.resumed and done.moved < waited else 0
    for hold in holds:
        for lane, offset in store.handover.offsets_to_correct(hold.shard, hold.now_ms).items():
            state = next(one for one in store.lanes(hold.shard) if one.lane == lane)
            if not store.handover.count_waiting(hold.shard):
                store.apply(hold.shard, hold.epoch, Change(lanes=[replace(state, offset=offset, watermark=offset)]))


def _left_since(holding: Holding, file: Path, header: Header) -> Iterator[int]:
    """One for each task of the file that was dispatched and not moved."""
    with file.open("rb") as lines:
        next(lines)
        for line in lines:
            found = read(line)
            yield any(row.lane != REST for row in holding.store.rows(found.shard, [found.row]))  # moved ones rest
