"""What is seen while a bench runs: a bar for whatever takes over a second, on stderr, if that is a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

Item = TypeVar("Item")


class Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def reach(self, done: float) -> None:
        self._progress.update(self._task, completed=done)

    def tell(self, note: str) -> None:
        self._progress.update(self._task, note=note)


class Show:
    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            refresh_per_second=4,  # drawing shares the cores with what is measured
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Show:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def bar(self, what: str, total: float) -> Iterator[Bar]:
        task = self._progress.add_task(what, total=total, note="")
        try:
            yield Bar(self._progress, task)
        finally:
            self._progress.remove_task(task)

    def track(self, items: Collection[Item], what: str) -> Iterator[Item]:
        with self.bar(what, len(items)) as bar:
            for done, item in enumerate(items):
                bar.tell(str(item))
                yield item
                bar.reach(done + 1)
