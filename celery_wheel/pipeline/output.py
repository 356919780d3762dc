"""The folder that a job's results go to: tables as one Parquet file each, the picture, and last the summary.

What a job gives out is small, whatever it read, so it comes to this process as Arrow and is written here: the executors
of a cluster, or of a Spark Connect server, need not see the folder. ``results`` says how it looks, and reads it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.results import FORMAT, SUMMARY
from celery_wheel.pipeline.summary import Summary

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

#: So many rejected rows are kept; how many there were, and why, is in the summary.
REJECTS_KEPT = 100_000
#: Who reads only the last rows of a large table reads no more of it than the groups that have them.
ROW_GROUP = 50_000


class Output:
    """``folder`` may be None: then nothing is written, and the summary is all there is."""

    def __init__(self, folder: str | None, job: str) -> None:
        self._folder = None if folder is None else Path(folder)
        self._job = job
        self._run = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{os.getpid()}"
        self._tables: dict[str, str] = {}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileUnusable(f"--output must be a folder that can be written to, got {folder}: {error}") from None
            self._refuse_anothers(self._folder / SUMMARY)

    def table(self, name: str, found: DataFrame | pa.Table) -> pa.Table:
        """Compute it, once, and keep it."""
        import pyarrow.parquet as pq

        arrow = found.toArrow() if hasattr(found, "toArrow") else found
        if self._folder is not None:
            self._tables[name] = file = f"{name}-{self._run}.parquet"
            pq.write_table(arrow, self._folder / file, compression="zstd", row_group_size=ROW_GROUP)
        return arrow

    def rejects(self, rejected: DataFrame) -> dict[str, int]:
        """How many were rejected, by reason; the first of them are kept in a table, with their reason."""
        counts = {str(row[0]): int(row[1]) for row in rejected.groupBy("reason").count().collect()}
        if counts:
            self.table("rejects", rejected.limit(REJECTS_KEPT))
        return dict(sorted(counts.items()))

    def picture(self, draw: Callable[[], Figure]) -> str | None:
        """``<job>.png``; it is not drawn where nothing is written."""
        if self._folder is None:
            return None
        path = self._folder / f"{self._job}.png"
        beside = path.with_suffix(".part")
        draw().savefig(beside, format="png")
        os.replace(beside, path)
        return str(path)

    def finish(self, summary: Summary) -> None:
        if self._folder is None:
            return
        before = self._named()
        text = {**summary.as_dict(), "format": FORMAT, "run": self._run, "tables": self._tables}
        beside = self._folder / f"{SUMMARY}.part"
        beside.write_text(json.dumps(text, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        os.replace(beside, self._folder / SUMMARY)
        for name in {*before, *self._tables}:
            for path in self._folder.glob(f"{name}-*Z-*.parquet"):
                if path.name not in {*before.values(), *self._tables.values()}:
                    path.unlink(missing_ok=True)

    def _named(self) -> dict[str, str]:
        """The tables of the run before."""
        path = self._folder / SUMMARY if self._folder else None
        if path is None or not path.exists():
            return {}
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")).get("tables", {})
        return found

    def _refuse_anothers(self, path: Path) -> None:
        """A folder holds the results of one job: of two, each would take the other's away."""
        if not path.exists():
            return
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))["job"]
        except (ValueError, LookupError, TypeError):
            found = "something else"
        if found != self._job:
            raise FileUnusable(
                f"--output {path.parent} has the results of {found}; give {self._job} a folder of its own"
            )
