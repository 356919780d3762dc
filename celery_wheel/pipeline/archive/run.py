"""One run of the job: its steps, in the order that makes each of them safe to be broken off.

::

    last state  staged? ─► say that it is this run's ─► finish it     done: this run's own begins
    stage       look at the store ─► events + what their days have ─► staged, counted ─► state "staged"
    finish      staged ─► days replaced, counted ─► the store's mark ─► state "done" ─► what was staged is removed

Killed before "staged": no day was changed, and the next run stages anew. Killed later: the next run finishes first.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.folder import Counts, Folder, by_day, counts
from celery_wheel.pipeline.archive.rows import DAY, arranged, events, merged
from celery_wheel.pipeline.archive.standing import Standing, look, lost_since
from celery_wheel.pipeline.archive.state import DONE, STAGED, State, States
from celery_wheel.pipeline.columns import HISTORY
from celery_wheel.pipeline.source.opened import opened
from celery_wheel.pipeline.source.options import as_events
from celery_wheel.pipeline.tables import read
from celery_wheel.present import many

#: About 100 MB.
ROWS_A_FILE = 1_000_000


class Run:
    """``done``: what it put into place, a state of which nothing is left to do."""

    def __init__(self, spark: SparkSession, url: str, path: str, *, mark: bool, tell: Callable[[str], None]) -> None:
        self._spark = spark
        self._url = url
        self._folder = Folder(spark, path)
        self._states = States(spark, path)
        self._mark = mark
        self._tell = tell
        self._name = uuid.uuid4().hex[:8]
        self.done: list[State] = []
        self.finished = False  #: whether one that was broken off was finished

    def run(self) -> State:
        self._folder.refuse_a_streams()
        state = self._states.begin()
        if state is not None and state.step == STAGED:
            look(self._url, state.store, {}, state.noted)  # before anything is put into place, or a mark set elsewhere
            state = replace(state, serial=state.serial + 1, run=self._name)
            self._states.write(state)
            state = self._finish(state)
            self.finished = True
        self._tell("looking at the store")
        archive = (state.store, state.marks, state.noted) if state else (None, {}, {})
        found = look(self._url, *archive)
        if state is None or found.days or found.lost:
            return self._finish(self._stage(state, found))
        self._note(state.marks)
        return state

    def _stage(self, before: State | None, found: Standing) -> State:
        """All of the days that change, in a folder of this run's own, read back and counted."""
        serial, gaps, noted = (before.serial + 1, before.gaps, before.noted) if before else (1, [], {})
        state = State(serial, STAGED, found.store, found.numbers, gaps, noted=noted, run=self._name)
        if found.days:
            self._tell(f"reading {many(sum(found.days.values()), 'event')} of {many(len(found.days), 'day')}")
            name = f"{serial:06}-{self._name}"
            kept = self._folder.days(found.days)
            history = read(self._spark, HISTORY, self._url, events=as_events(found.ranges))
            was, is_ = counts(kept), counts(self._folder.stage(merged(events(history), kept), name))
            _check_grown(was, is_)
            state = replace(state, staging=name, days=by_day(is_), added=_added(was, is_))
        lost = [one.as_dict() for one in (*found.lost, *lost_since(self._url, found))]
        state = replace(state, lost=lost, gaps=[*gaps, *lost])
        self._states.write(state)
        return state

    def _finish(self, staged: State) -> State:
        """However often, and from wherever it was broken off."""
        if staged.days:
            self._tell(f"writing {many(len(staged.days), 'day')}")
            rows = self._folder.staged(staged.staging)
            self._folder.replace(arranged(rows, -(-sum(staged.days.values()) // ROWS_A_FILE)))
            self._check_in_place(staged)
        self._states.check()
        noted = self._note(staged.marks) or staged.noted
        done = State(staged.serial + 1, DONE, staged.store, staged.marks, staged.gaps, noted=noted, run=self._name)
        self._states.write(done)
        if staged.days:
            self._folder.clear()
        self.done.append(staged)
        return done

    def _check_in_place(self, staged: State) -> None:
        found = by_day(counts(self._folder.days(staged.days)))
        for day, count in staged.days.items():
            if found.get(day, 0) != count:
                raise FileUnusable(
                    f"{self._folder.path}/{DAY}={day} has {found.get(day, 0):,} events, and {count:,} were written: "
                    "does another program write there? The store's mark was not moved, and the day is staged whole: "
                    "run the job again"
                )

    def _note(self, marks: Mapping[int, int]) -> dict[int, int]:
        """Returns what is in the store for certain."""
        if not self._mark:
            return {}
        with opened(self._url) as store:
            store.maintenance.note_archived(marks)
        return dict(marks)


def _check_grown(was: Counts, is_: Counts) -> None:
    for place, count in was.items():
        if is_.get(place, 0) < count:
            day, outcome = place
            raise FileUnusable(
                f"{DAY}={day} of the archive has {count:,} events {outcome}, and would have {is_.get(place, 0):,} "
                "after this run; nothing was changed; does another program write to it?"
            )


def _added(was: Counts, is_: Counts) -> dict[str, int]:
    added = Counter[str]()
    for (_, outcome), count in is_.items():
        added[outcome] += count
    for (_, outcome), count in was.items():
        added[outcome] -= count
    return {outcome: count for outcome, count in sorted(added.items()) if count}
