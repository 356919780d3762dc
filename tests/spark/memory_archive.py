"""An archive in memory, over which the jobs ``archive`` and ``compact`` run without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery_wheel.archive.reader import DataFile, Manifest, last_manifest, parse_manifest

Rows = list[dict[str, Any]]


@dataclass
class MemoryFolder:
    """An archive in memory; ``step`` is called before each access, and may not return."""

    step: Callable[[], None] = lambda: None
    path: str = "memory"
    data: dict[str, Rows] = field(default_factory=dict)
    manifests: dict[str, str] = field(default_factory=dict)

    def refuse_stream_output(self) -> None: ...

    def read(self, files: list[DataFile]) -> Rows:
        self.step()
        return [row for file in files for row in self.data[file.path]]

    def write(self, rows: Rows, run: str, count: int) -> list[DataFile]:
        assert not any(path.startswith(f"run={run}/") for path in self.data), "a run has a folder of its own"
        days: dict[str, Rows] = {}
        for row in rows:
            days.setdefault(f"{row['at']:%Y-%m-%d}", []).append(row)
        files = []
        for day, found in days.items():
            self.step()  # killed here, the run leaves some of its files
            path = f"run={run}/day={day}/part-0.parquet"
            self.data[path] = found
            files.append(DataFile(path, day, dict(Counter(row["outcome"] for row in found))))
        return files

    def runs(self) -> set[str]:
        self.step()
        return {path.split("/")[0].removeprefix("run=") for path in self.data}

    def remove(self, folder: str) -> None:
        for path in [path for path in self.data if path.startswith(f"{folder}/")]:
            self.step()
            self.data.pop(path, None)  # another run may remove it, too

    def last(self) -> Manifest | None:
        self.step()
        return self.current()

    def current(self) -> Manifest | None:
        path = last_manifest(self.manifests)
        return None if path is None else parse_manifest(self.manifests[path], path)

    def rows(self) -> Rows:
        """The events of the files that count."""
        last = self.current()
        return [] if last is None else [row for file in last.files for row in self.data[file.path]]

    def put(self, manifest: Manifest) -> None:
        self.step()
        self.manifests[f"{manifest.folder}/part-0.txt"] = manifest.to_line()
