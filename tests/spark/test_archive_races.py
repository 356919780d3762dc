"""Runs of ``archive`` and ``compact`` at once, killed at any step: a reader always has each archived event once.

The jobs run without Spark, over a store of their own and a folder in memory: each in a greenlet, which gives up control
before each access of the folder. A seeded generator decides which of them continues, and which one is killed there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from greenlet import GreenletExit, greenlet

from celery_wheel.archive.reader import Manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive import runs as compaction_module
from celery_wheel.pipeline.archive import runs as run_module
from celery_wheel.pipeline.archive.folder import IDENTITY
from celery_wheel.pipeline.archive.runs import ArchiveRun, Compaction, began_ms
from celery_wheel.pipeline.source.options import format_events, read_options
from celery_wheel.pipeline.source.read import WheelReader
from celery_wheel.pipeline.source.statements import HISTORY_SCHEMA
from celery_wheel.store.ports import Retention
from tests.kit.holder import NO_LIMIT, NOW
from tests.spark.memory_archive import MemoryFolder, Rows
from tests.spark.stores import Site, site
from tests.spark.test_archive import add_events

KEEP_MS = 86_400_000
KEY = (*IDENTITY, "shard")


class Race:
    def __init__(self, seed: int, one: Site, patch: pytest.MonkeyPatch) -> None:
        self.random, self.one, self.now_ms, self.number = random.Random(seed), one, NOW, 0
        self.hub = greenlet.getcurrent()
        self.folder = MemoryFolder(lambda: self.hub.switch())
        self.expected, self.upto = set[tuple[Any, ...]](), 0
        self.seen: list[tuple[int, Manifest]] = []
        self.stopped, self.had = 0, set[tuple[Any, ...]]()
        for module in (run_module, compaction_module):
            patch.setattr(module, "new_run", self.new_run)

    def new_run(self) -> str:
        self.number += 1
        seconds = self.now_ms // 1_000 - NOW // 1_000
        assert 0 <= seconds < 28 * 86_400
        day, rest = divmod(seconds, 86_400)
        return f"202701{1 + day:02}T{rest // 3_600:02}{rest // 60 % 60:02}{rest % 60:02}Z-{self.random.random()}"

    def events(self, ranges: Mapping[int, tuple[int, int]]) -> Rows:
        given = {"url": self.one.url, "table": "history", "events": format_events(ranges)}
        reader = WheelReader(read_options(given), HISTORY_SCHEMA)
        return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    # -- jobs ------------------------------------------------------------------------------------------

    def archive(self) -> None:
        with suppress(FileUnusable):  # another run continues instead
            ArchiveRun(self.folder, self.one.url, self.events, mark=True, progress=lambda _: None).run()
            return
        self.stopped += 1

    def compact(self) -> None:
        now_ms = began_ms(self.new_run(), 0)
        with suppress(FileUnusable):
            Compaction(self.folder, now_ms=now_ms, keep_ms=KEEP_MS, progress=lambda _: None).run()

    # -- between their steps -----------------------------------------------------------------------------

    def add(self, *days: int) -> None:
        """Two events, and retention may remove the archived ones."""
        add_events(self.one, NOW + self.random.choice(days or range(-2, 3)) * 86_400_000)
        upto = self.one.holder.highest_seq
        self.expected |= {tuple(row[name] for name in KEY) for row in self.events({0: (self.upto, upto)})}
        self.upto = upto
        if self.random.random() < 0.5:
            retention = Retention(2**53, NO_LIMIT, archived_only=True)
            self.one.store.forget(0, self.one.holder.epoch, retention, 1_000)

    def check(self) -> None:
        """A reader has every event up to the marks once, and one that began earlier still has all of its files."""
        last = self.folder.current()
        if last is None:
            return
        found = Counter(tuple(row[name] for name in KEY) for row in self.folder.rows())
        archived = {key for key in self.expected if (key[3] or key[2]) <= last.marks.get(key[4], 0)}
        assert found == Counter(archived)
        assert archived >= self.had, "a later reader has what an earlier one had"
        self.had = archived
        self.seen = [(at, one) for at, one in self.seen if self.now_ms - at < KEEP_MS] + [(self.now_ms, last)]
        assert all(file.path in self.folder.data for _, one in self.seen[-40:] for file in one.files)

    def round(self, jobs: list[Callable[[], None]], kill: float = 0.0, add: float = 0.0) -> None:
        running = [greenlet(job, self.hub) for job in jobs]
        while running:
            job = self.random.choice(running)
            if job and self.random.random() < kill:
                job.throw(GreenletExit)
            else:
                job.switch()
            running = [one for one in running if not one.dead]
            self.check()
            if self.random.random() < add:
                self.add()


@pytest.mark.parametrize("seed", range(6))
def test_each_archived_event_is_read_once_whatever_runs_do_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        race = Race(seed, one, monkeypatch)
        for _ in range(20):
            race.add()
            jobs = [race.random.choice([race.archive, race.archive, race.compact]) for _ in range(3)]
            race.round(jobs[: race.random.randint(1, 3)], kill=0.02, add=0.03)
            race.now_ms += race.random.choice([1_000, KEEP_MS // 2, KEEP_MS + 1_000])
        for job in (race.archive, race.compact):
            race.round([job])
        race.now_ms += 2 * KEEP_MS
        race.round([race.compact])
        last = race.folder.current()
        assert last is not None
        assert sum(file.events for file in last.files) == len(race.expected)
        assert {*race.folder.data} == {file.path for file in last.files}, "nothing else is left"
        assert len(last.files) == len(last.days())


def test_both_of_a_compaction_and_an_archive_run_take_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with site(f"sqlite:///{tmp_path}/wheel.sqlite3") as one:
        race = Race(0, one, monkeypatch)
        for _ in range(2):
            race.add(0)
            race.round([race.archive])
        race.add(0)
        archive, compact = greenlet(race.archive), greenlet(race.compact)
        while not archive.dead or not compact.dead:  # step by step in turn
            for job in (archive, compact):
                if not job.dead:
                    job.switch()
        last = race.folder.current()
        assert last is not None
        assert (race.stopped, len(last.files), sum(file.events for file in last.files)) == (0, 2, 6)
        assert len(last.replaced) == 2
