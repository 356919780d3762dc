"""The results of a job, read back by the admin and by programs, with pyarrow and the standard library alone.

::

    DIR/summary.json            the job's summary: {"job", "format", "run", "tables": {name: file}, …}
    DIR/hours-<run>.parquet     its tables: a folder of parts, sorted by name, or one file; the job's module documents
                                the tables with their columns

Promise: ``summary.json`` is written last and replaced atomically, and its files remain for one more run. A reader has
the results of one run while a job writes the next. Files may be missing in a folder that another program copies: then
``read_results`` reads a second time.

Non-promise: names and columns that the job's module does not document may change, and ``format`` with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from celery_wheel.errors import FileUnusable

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
SUMMARY = "summary.json"
#: The name of a run begins with its instant, before a dash.
RUN_TIME = "%Y%m%dT%H%M%SZ"

T = TypeVar("T")


def began_at(run: str) -> datetime | None:
    """Return the instant at which a run began, by its name; None for a name of another program."""
    try:
        return datetime.strptime(run.partition("-")[0], RUN_TIME).replace(tzinfo=UTC)
    except ValueError:
        return None


def read_results(folder: str | Path, read: Callable[[JobResults], T]) -> T:
    """Return the value of ``read`` for the results in ``folder``; reads them a second time if a file was unusable."""
    try:
        return read(JobResults(folder))
    except FileUnusable:
        return read(JobResults(folder))


class JobResults:
    """The results in a folder, of the last run that finished.

    Raises:
        FileUnusable: the folder has no results, or results of another format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / SUMMARY
        try:
            self.summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileUnusable(f"{path} does not exist: no job has written results into this folder") from None
        except (OSError, ValueError, RecursionError) as error:
            raise FileUnusable(f"{path} is not the summary of a job: {error}") from None
        format_ = self.summary.get("format") if isinstance(self.summary, dict) else None
        if format_ != FORMAT:
            raise FileUnusable(
                f"{path} must be of format {FORMAT}, got {format_!r}; run the job again with this version"
            )
        tables = self.summary.get("tables")
        if not isinstance(self.summary.get("job"), str) or not isinstance(tables, dict):
            raise FileUnusable(f"{path} is not the summary of a job: it names no job, or no tables")

    @property
    def job(self) -> str:
        return str(self.summary["job"])

    @property
    def tables(self) -> list[str]:
        return sorted(self.summary["tables"])

    @property
    def at(self) -> datetime | None:
        """The start of the run; None where the summary lacks it."""
        return began_at(str(self.summary.get("run")))

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one of ``tables``; name the ``columns`` to avoid reading the others, above all the sketches."""
        return self.read_rows(name, columns)[0]

    def read_rows(
        self, name: str, columns: Sequence[str] | None = None, limit: int | None = None, *, last: bool = False
    ) -> tuple[pa.Table, int]:
        """Return (the first ``limit`` rows of a table, or its last ones; the total). The other rows are not read."""
        import pyarrow as pa  # only here: the summary of a job is read without pyarrow
        import pyarrow.parquet as pq

        if name not in self.summary["tables"]:
            raise FileUnusable(f"{self.folder} has no table {name!r} of {self.job}; it has {', '.join(self.tables)}")
        path = self.folder / str(self.summary["tables"][name])
        try:
            groups = _row_groups(sorted(path.glob("*.parquet")) if path.is_dir() else [path])
            schema = pq.read_schema(groups[0][0])
            if missing := [column for column in columns or () if column not in schema.names]:
                raise FileUnusable(f"{path} has no column {', '.join(missing)}; run {self.job} again")
            names = list(columns or schema.names)
            tables, taken, total = [schema.empty_table().select(names)], 0, sum(rows for _, _, rows in groups)
            chosen: dict[Path, list[int]] = {}
            for part, number, rows in reversed(groups) if last else groups:
                if rows and (limit is None or taken < limit):
                    chosen.setdefault(part, []).append(number)
                    taken += rows
            for part, numbers in sorted(chosen.items()):
                with pq.ParquetFile(part) as file:
                    tables.append(file.read_row_groups(sorted(numbers), columns=names))
            table = pa.concat_tables(tables)
        except (OSError, ValueError, IndexError, pa.ArrowException) as error:  # ValueError: no name of a file
            raise FileUnusable(f"{path} cannot be read: {error}; run {self.job} again if the error persists") from error
        if limit is not None and table.num_rows > limit:
            table = table.slice(table.num_rows - limit if last else 0, limit)
        return table, total

    def rows(self, name: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return one of ``tables`` as plain rows, with instants in UTC."""
        rows: list[dict[str, Any]] = self.table(name, columns).to_pylist()
        return rows


def _row_groups(parts: Sequence[Path]) -> list[tuple[Path, int, int]]:
    """Return (part, number, rows) of each row group of the parts of a table; a part without rows counts as one."""
    import pyarrow.parquet as pq

    groups = []
    for part in parts:
        metadata = pq.read_metadata(part)
        groups += [(part, number, metadata.row_group(number).num_rows) for number in range(metadata.num_row_groups)]
        groups += [] if metadata.num_row_groups else [(part, 0, 0)]
    return groups
