"""One run of the job ``compact``: the small files of each day as few large ones, and old files removed.

::

    day with more files than its events need ─► run=…, counted ─► manifest: these files instead of those
    folders replaced for --keep, and those of runs that were killed so long ago ─► removed ─► manifest without them
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from celery_wheel.archive.model import DataFile, Manifest
from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.archive.commit import ArchiveStorage, began_ms, commit, last_of, new_run, other_run
from celery_wheel.pipeline.archive.folder import ROWS_A_FILE


@dataclass(slots=True)
class Compacted:
    """The result of a run: by day the number of files before and after, and the folders removed."""

    days: dict[str, tuple[int, int]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)


class Compaction:
    """``keep_ms``: for how long replaced files stay, for readers and runs that began before."""

    def __init__(self, storage: ArchiveStorage, *, now_ms: int, keep_ms: int, progress: Callable[[str], None]) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._keep_ms = keep_ms
        self._progress = progress

    def run(self) -> Compacted:
        done, last = Compacted(), last_of(self._storage)
        for day, files in _by_day(last.files).items():
            if len(files) > max(1, -(-sum(file.events for file in files) // ROWS_A_FILE)):
                self._progress(f"compacting {day}")
                done.days[day] = (len(files), len(self._compact(files)))
        self._progress("removing old files")
        done.removed = self._remove_old(last_of(self._storage))
        return done

    def _compact(self, old: list[DataFile]) -> list[DataFile]:
        run, count = new_run(), sum(file.events for file in old)
        new = self._storage.write(self._storage.read(old), run, count)
        if _outcomes(new) != _outcomes(old):
            raise FileUnusable(
                f"{old[0].folder} and others have {dict(_outcomes(old))}, but their copy has {dict(_outcomes(new))}; "
                "nothing was changed; does another program write to the archive?"
            )

        paths = {file.path for file in old}

        def change(last: Manifest) -> Manifest:
            if not paths <= {file.path for file in last.files}:
                raise other_run(self._storage)
            kept = [file for file in last.files if file.path not in paths]
            files = (*new, *kept)  # a kept file of this day is of a later run
            replaced = {file.folder: self._now_ms for file in old}
            return replace(last, serial=last.serial + 1, run=run, files=files, replaced={**last.replaced, **replaced})

        commit(self._storage, change)
        return new

    def _remove_old(self, last: Manifest) -> list[str]:
        """Remove folders that no manifest has named for ``keep_ms``, then their names from the manifest."""
        until_ms = self._now_ms - self._keep_ms
        named = {file.folder for file in last.files}
        old = [folder for folder, since in last.replaced.items() if since <= until_ms and folder not in named]
        runs = {folder.partition("/")[0] for folder in (*named, *last.replaced)}
        killed = [f"run={run}" for run in self._storage.runs() if began_ms(run, default=self._now_ms + 1) <= until_ms]
        removed = sorted({*old, *(folder for folder in killed if folder not in runs)})
        for folder in removed:
            self._storage.remove(folder)
        if old:
            commit(self._storage, lambda last: _without(last, old))
        return removed


def _without(last: Manifest, folders: Iterable[str]) -> Manifest:
    replaced = {folder: since for folder, since in last.replaced.items() if folder not in folders}
    return replace(last, serial=last.serial + 1, run=new_run(), replaced=replaced)


def _by_day(files: Iterable[DataFile]) -> dict[str, list[DataFile]]:
    days: dict[str, list[DataFile]] = {}
    for file in files:
        days.setdefault(file.day, []).append(file)
    return dict(sorted(days.items()))


def _outcomes(files: Iterable[DataFile]) -> Counter[str]:
    total = Counter[str]()
    for file in files:
        total.update(file.outcomes)
    return total
