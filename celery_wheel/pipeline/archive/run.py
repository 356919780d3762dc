"""One run of the job ``archive``: its steps, in the order that makes it safe to interrupt each of them.

::

    last state  "staged": write this run's name into it ─► finish it       "done": stage
    stage       survey the store ─► new events + archived ones of their days ─► staged, counted ─► state "staged"
    finish      staged ─► days replaced, counted ─► the store's mark ─► state "done" ─► staging folder removed

A run that is killed before "staged" has changed no day, and the next run stages anew. After a later kill the next run
first finishes the killed one.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyspark.sql import SparkSession

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.events import DAY, merge_events, sort_events, with_day
from celery_wheel.pipeline.archive.folder import ArchiveFolder, Counts, count_events, sum_by_day
from celery_wheel.pipeline.archive.state import DONE, STAGED, ArchiveState, ArchiveStateFile
from celery_wheel.pipeline.archive.survey import ArchiveSurvey, lost_since, survey_store
from celery_wheel.pipeline.columns import HISTORY
from celery_wheel.pipeline.source.options import format_events
from celery_wheel.pipeline.source.snapshot import open_for_reading
from celery_wheel.pipeline.tables import read
from celery_wheel.values.format import format_count

#: A file of about 100 MB.
ROWS_A_FILE = 1_000_000


class ArchiveRun:
    """One run; ``done`` lists the states that it finished."""

    def __init__(
        self, spark: SparkSession, url: str, path: str, *, mark: bool, progress: Callable[[str], None]
    ) -> None:
        self._spark = spark
        self._url = url
        self._folder = ArchiveFolder(spark, path)
        self._states = ArchiveStateFile(spark, path)
        self._mark = mark
        self._progress = progress
        self._name = uuid.uuid4().hex[:8]
        self.done: list[ArchiveState] = []
        self.finished = False  #: whether this run finished an interrupted one

    def run(self) -> ArchiveState:
        self._folder.refuse_stream_output()
        state = self._states.begin()
        if state is not None and state.step == STAGED:
            survey_store(self._url, state.store, {}, state.noted)  # refuses another store before any change
            state = replace(state, serial=state.serial + 1, run=self._name)
            self._states.write(state)
            state = self._finish(state)
            self.finished = True
        self._progress("surveying the store")
        archive = (state.store, state.marks, state.noted) if state else (None, {}, {})
        survey = survey_store(self._url, *archive)
        if state is None or survey.days or survey.lost:
            return self._finish(self._stage(state, survey))
        self._note_marks(state.marks)
        return state

    def _stage(self, before: ArchiveState | None, survey: ArchiveSurvey) -> ArchiveState:
        """Write all changed days into a folder of this run, and read them back to count them."""
        serial, gaps, noted = (before.serial + 1, before.gaps, before.noted) if before else (1, [], {})
        state = ArchiveState(serial, STAGED, survey.store, survey.numbers, gaps, noted=noted, run=self._name)
        if survey.days:
            self._progress(
                f"reading {format_count(sum(survey.days.values()), 'event')} of {format_count(len(survey.days), 'day')}"
            )
            name = f"{serial:06}-{self._name}"
            archived = self._folder.days(survey.days)
            history = read(self._spark, HISTORY, self._url, events=format_events(survey.ranges))
            before_counts = count_events(archived)
            counts = count_events(self._folder.stage(merge_events(with_day(history), archived), name))
            _check_grown(before_counts, counts)
            added = dict(sorted((_by_outcome(counts) - _by_outcome(before_counts)).items()))
            state = replace(state, staging=name, days=sum_by_day(counts), added=added)
        lost = [range_.as_dict() for range_ in (*survey.lost, *lost_since(self._url, survey))]
        state = replace(state, lost=lost, gaps=[*gaps, *lost])
        self._states.write(state)
        return state

    def _finish(self, staged: ArchiveState) -> ArchiveState:
        """Finish a staged run, from any step at which it was interrupted, any number of times."""
        if staged.days:
            self._progress(f"writing {format_count(len(staged.days), 'day')}")
            rows = self._folder.staged(staged.staging)
            self._folder.replace(sort_events(rows, -(-sum(staged.days.values()) // ROWS_A_FILE)))
            self._check_replaced(staged)
        self._states.check()
        noted, serial = self._note_marks(staged.marks) or staged.noted, staged.serial + 1
        done = ArchiveState(serial, DONE, staged.store, staged.marks, staged.gaps, noted=noted, run=self._name)
        self._states.write(done)
        if staged.days:
            self._folder.clear()
        self.done.append(staged)
        return done

    def _check_replaced(self, staged: ArchiveState) -> None:
        counts = sum_by_day(count_events(self._folder.days(staged.days)))
        for day, count in staged.days.items():
            if counts.get(day, 0) != count:
                raise FileUnusable(
                    f"{self._folder.path}/{DAY}={day} has {counts.get(day, 0):,} events, but {count:,} were written: "
                    "does another program write there? The store's mark was not moved, and the staged day is complete: "
                    "run the job again"
                )

    def _note_marks(self, marks: Mapping[int, int]) -> dict[int, int]:
        """Write the marks to the store, unless --no-mark, and return the marks that the store has."""
        if not self._mark:
            return {}
        with open_for_reading(self._url) as store:
            store.maintenance.note_archived(marks)
        return dict(marks)


def _check_grown(before: Counts, after: Counts) -> None:
    for place, count in before.items():
        if after.get(place, 0) < count:
            day, outcome = place
            raise FileUnusable(
                f"{DAY}={day} of the archive has {count:,} events {outcome}, and would have {after.get(place, 0):,} "
                "after this run; nothing was changed; does another program write to it?"
            )


def _by_outcome(counts: Counts) -> Counter[str]:
    totals = Counter[str]()
    for (_, outcome), count in counts.items():
        totals[outcome] += count
    return totals
