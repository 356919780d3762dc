"""The folder of a job's results: its tables as Parquet, the picture, and last the summary.

Executors write a table; this process reads back counts, first rows and points, and never millions of rows. So both must
see the same folder. ``celery_wheel.results.reader`` describes the folder, and reads it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

from celery_wheel.errors import FileUnusable
from celery_wheel.pipeline.jobs import JobSummary
from celery_wheel.results.reader import FORMAT, RUN_TIME, SUMMARY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The part of a reason before the value that it quotes: "eta cannot be read", "priority must be a whole number …".
KIND = r"(?s)^(.*?)(?:, got |: |$)"
#: A reader of the last rows of a large table reads only their row groups.
WRITE = {"compression": "zstd", "parquet.block.row.count.limit": "50000"}


class OutputFolder:
    """Writes the results of one run. With ``folder`` None nothing is written, and the summary is the only result."""

    def __init__(self, folder: str | None, job: str) -> None:
        self._folder = None if folder is None else Path(folder)
        self._job = job
        self._run = time.strftime(RUN_TIME, time.gmtime()) + f"-{os.getpid()}"
        self._tables: dict[str, str] = {}
        self._kept: list[DataFrame] = []
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileUnusable(f"--output must be a folder that can be written to, got {folder}: {error}") from None
            self._check_owner(self._folder / SUMMARY)

    def table(self, name: str, frame: DataFrame) -> DataFrame:
        """Compute a table once, let the executors write it, and return it as it was written.

        Raises FileUnusable where rows that were written did not arrive in the folder of this process.
        """
        if self._folder is None:
            self._kept.append(frame.persist())
            frame.count()  # now: its inputs may be released before it is used
            return frame
        self._tables[name] = file = f"{name}-{self._run}.parquet"
        path, written = self._folder / file, Observation()
        frame.observe(written, f.count(f.lit(1)).alias("rows")).write.options(**WRITE).parquet(_uri(path))
        arrived = sum(pq.read_metadata(part).num_rows for part in path.glob("*.parquet"))
        if arrived != written.get["rows"]:
            raise FileUnusable(
                f"the executors wrote {written.get['rows']:,} rows of {name}, and {arrived:,} of them are in {path}; "
                "--output must be a folder that this process and all executors see"
            )
        return frame.sparkSession.read.schema(frame.schema).parquet(_uri(path))

    def rows(self, name: str, rows: list[dict[str, Any]]) -> None:
        if self._folder is not None:
            self._tables[name] = file = f"{name}-{self._run}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), self._folder / file, compression="zstd")

    def rejects(self, rejected: DataFrame) -> dict[str, int]:
        """Count the rejected rows by the kind of their reason, and write the first of them as the table ``rejects``."""
        by_kind = rejected.groupBy(f.regexp_extract("reason", KIND, 1)).count()
        counts = {str(row[0]): int(row[1]) for row in by_kind.collect()}
        if counts:
            self.table("rejects", rejected.limit(100_000))
        return dict(sorted(counts.items()))

    def picture(self, draw: Callable[[Any], Figure]) -> str | None:
        """Write ``<job>.png``, which ``draw`` makes with the module ``plot``; without a folder nothing is drawn."""
        if self._folder is None:
            return None
        from celery_wheel.pipeline import plot  # imports matplotlib, which a run without a folder does not need

        path = self._folder / f"{self._job}.png"
        part = path.with_suffix(".part")
        draw(plot).savefig(part, format="png")
        os.replace(part, path)
        return str(path)

    def finish(self, summary: JobSummary) -> JobSummary:
        """Write the summary, remove tables that neither this run nor the one before it names, and return it."""
        for frame in self._kept:
            frame.unpersist()
        if self._folder is None:
            return summary
        path = self._folder / SUMMARY
        before = json.loads(path.read_text(encoding="utf-8")).get("tables", {}) if path.exists() else {}
        text = {**summary.as_dict(), "format": FORMAT, "run": self._run, "tables": self._tables}
        part = self._folder / f"{SUMMARY}.part"
        part.write_text(json.dumps(text, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        os.replace(part, path)
        for name in {*before, *self._tables}:
            for old in self._folder.glob(f"{name}-*Z-*.parquet"):
                if old.name not in {*before.values(), *self._tables.values()}:
                    shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        return summary

    def _check_owner(self, path: Path) -> None:
        """Refuse a folder with the results of another job: each of the two would remove the other's tables."""
        if not path.exists():
            return
        try:
            owner: Any = json.loads(path.read_text(encoding="utf-8"))["job"]
        except (ValueError, LookupError, TypeError):
            owner = "something else"
        if owner != self._job:
            raise FileUnusable(
                f"--output {path.parent} has the results of {owner}; give {self._job} a folder of its own"
            )


def _uri(path: Path) -> str:
    """Return the path as one of the file system: to a cluster, a bare path may mean another storage."""
    return path.absolute().as_uri()


def first_rows(frame: DataFrame, most: int) -> list[dict[str, Any]]:
    """Return at most ``most`` rows of a table to this process, with instants in UTC."""
    rows: list[dict[str, Any]] = frame.limit(most).toArrow().to_pylist()
    return rows
