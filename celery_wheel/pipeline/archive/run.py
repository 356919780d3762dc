"""One run of the job ``archive``; the package describes its steps, and what a kill leaves at each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery_wheel.archive.model import DataFile, Manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.commit import ArchiveStorage, commit, last_of, new_run, other_run
from celery_wheel.pipeline.archive.events import COLUMNS, VERSION
from celery_wheel.pipeline.archive.survey import ArchiveSurvey, lost_since, survey_store
from celery_wheel.pipeline.source.snapshot import open_for_reading
from celery_wheel.values.format import format_count

#: From ranges of numbers by shard, (after, upto], to their events with the column ``day``.
ReadEvents = Callable[[Mapping[int, tuple[int, int]]], Any]


@dataclass(slots=True)
class Archived:
    """The result of a run: the manifest that counts, the files it added, and the losses it found."""

    manifest: Manifest
    files: list[DataFile] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)


class ArchiveRun:
    """``mark``: whether the store's mark moves, so that retention may remove archived history."""

    def __init__(
        self, storage: ArchiveStorage, url: str, events: ReadEvents, *, mark: bool, progress: Callable[[str], None]
    ) -> None:
        self._storage = storage
        self._url = url
        self._events = events
        self._mark = mark
        self._progress = progress
        self._name = new_run()

    def run(self) -> Archived:
        base = self._storage.last() or self._begin()
        self._progress("surveying the store")
        survey = survey_store(self._url, base.store or None, base.marks, base.noted)
        done = Archived(base)
        if survey.days or survey.lost or not base.store:
            done = self._append(base, survey)
        return self._note_marks(done)

    def _begin(self) -> Manifest:
        """Begin an archive, with no event: so data without a manifest is never that of a killed first run."""
        if self._storage.runs():
            raise FileUnusable(
                f"{self._storage.path} has the data of an archive, but no manifest that says which files count; "
                "restore its folder _manifest from a copy, or begin a new archive: --output"
            )
        self._storage.put(Manifest(1, self._name, "", {}, VERSION, COLUMNS))
        return last_of(self._storage)

    def _append(self, base: Manifest, survey: ArchiveSurvey) -> Archived:
        """Write the new events as files of this run, and name them in the next manifest."""
        files: list[DataFile] = []
        if survey.days:
            count = sum(survey.days.values())
            self._progress(f"archiving {format_count(count, 'event')} of {format_count(len(survey.days), 'day')}")
            files = self._storage.write(self._events(survey.ranges), self._name, count)
        lost = [range_.as_dict() for range_ in (*survey.lost, *lost_since(self._url, survey))]

        def change(last: Manifest) -> Manifest:
            if last.marks != base.marks:
                raise other_run(self._storage)
            return replace(
                last,
                serial=last.serial + 1,
                run=self._name,
                store=survey.store,
                # With the marks of shards that a reshard removed: the sum of all marks never falls.
                marks={**base.marks, **survey.numbers},
                schema=VERSION,
                columns=COLUMNS,
                files=(*last.files, *files),
                gaps=[*last.gaps, *lost],
            )

        return Archived(commit(self._storage, change), files, lost)

    def _note_marks(self, done: Archived) -> Archived:
        """Move the store's marks, unless --no-mark, and note in the manifest that the store has them.

        An older copy of the store lacks a mark that was noted. Also after no new event: the last run may have been
        killed before this step.
        """
        marks = done.manifest.marks
        if not self._mark or done.manifest.noted == marks:
            return done
        with open_for_reading(self._url) as store:
            store.maintenance.note_archived(marks)

        def change(last: Manifest) -> Manifest:
            if last.marks != marks:
                raise other_run(self._storage)
            return replace(last, serial=last.serial + 1, run=self._name, noted=dict(marks))

        done.manifest = commit(self._storage, change)
        return done
