"""``import_``: the tasks of a drain's file into a wheel, by the inbox; a scheduler takes them in.

::

    line ─► read ─► wire ─► inbox of the shard of its key, or task id, in groups
       └─ cannot be read: its number and the reason; the others go on

Twice is once: an envelope's id that the store knows, or meets a second time in the inbox, is not taken in again. Back
in the store that it came from, which knows all of them, each has another id, made of the drain's and its own: so that,
too, is done once however often the file is imported.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_wheel.broker import check_transport
from celery_wheel.broker.names import shard_of
from celery_wheel.conf import Conf
from celery_wheel.errors import FileUnusable
from celery_wheel.leaving.progress import Progress, silent
from celery_wheel.leaving.record import Line, header_of, read
from celery_wheel.store import open_store
from celery_wheel.store.ports import FullStore

#: Of one commit.
LINES_AT_ONCE, BYTES_AT_ONCE = 500, 4 * 2**20

#: Bad lines that are told one by one; the others are counted.
TOLD = 1_000


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int  #: from 1, the header's being the first
    reason: str


@dataclass(slots=True)
class Imported:
    """``put``: tasks in the inbox now. ``known``: tasks that the store has, or had. ``set_aside``: those left out."""

    expected: int = 0  #: as the header says
    read: int = 0
    put: int = 0
    known: int = 0
    set_aside: int = 0
    bad_count: int = 0
    bad: list[BadLine] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Lines of which the header speaks and that are not there: the file was cut."""
        return max(0, self.expected - self.read)


def import_(
    app: Any,
    file: str | Path,
    *,
    store: FullStore | None = None,
    set_aside: bool = False,
    progress: Progress = silent,
) -> Imported:
    """Schedule the tasks of a file. Schedulers may run. May be killed, and called again.

    Args:
        store: the app's own if it is not given, which is made if it is not there.
        set_aside: True takes in what was set aside, too: bytes that were no message come to rest again.

    Raises FileUnusable for what is no file of a drain's; StoreError, and what was committed so far is in the inbox.
    """
    conf = Conf(app)
    conf.check()
    check_transport(app)
    path = Path(file)
    if not path.is_file():
        raise FileUnusable(f"{path} must be a file that a drain has made, got none; nothing was done")
    own = store is None
    opened = store or open_store(conf.store, durability=conf.durability, shards=conf.shards, lease_ms=conf.lease_ms)
    try:
        return _Import(opened, set_aside, progress).run(path)
    finally:
        if own:
            opened.close()


class _Import:
    def __init__(self, store: FullStore, set_aside: bool, progress: Progress) -> None:
        self._store = store
        self._set_aside = set_aside
        self._progress = progress
        self._done = Imported()
        self._group: list[Line] = []
        self._weight = 0

    def run(self, path: Path) -> Imported:
        done = self._done
        with path.open("rb") as lines:
            header = header_of(lines.readline(), str(path))
            done.expected = header.count
            again_in = header.drain if header.store == self._store.uuid else None
            for number, line in enumerate(lines, start=2):
                done.read += 1
                try:
                    self._add(read(line, again_in))
                except ValueError as error:
                    self._tell(number, str(error))
        self._flush()
        return done

    def _tell(self, number: int, reason: str) -> None:
        self._done.bad_count += 1
        if len(self._done.bad) < TOLD:
            self._done.bad.append(BadLine(number, reason))

    def _add(self, line: Line) -> None:
        if line.set_aside and not self._set_aside:
            self._done.set_aside += 1
            return
        self._group.append(line)
        self._weight += len(line.wire)
        if len(self._group) == LINES_AT_ONCE or self._weight > BYTES_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Put the group into the inboxes, in the order of the file."""
        by_shard: dict[int, list[Line]] = defaultdict(list)
        for line in self._group:
            by_shard[shard_of(line.key, line.task_id, self._store.shards)].append(line)
        for shard, group in by_shard.items():
            known = self._store.known(shard, [line.envelope_id for line in group])
            fresh = [line for line in group if line.envelope_id not in known]
            if fresh:
                self._store.put_inbox(shard, [("message", line.wire) for line in fresh])
            self._done.put += len(fresh)
            self._done.known += len(group) - len(fresh)
        self._group, self._weight = [], 0
        self._progress("imported", self._done.put + self._done.known, self._done.expected)
