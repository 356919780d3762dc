"""The results of a job, read back: by the admin, by programs. pyarrow and the standard library only, so no Java.

::

    DIR/summary.json            what the job said: {"job", "format", "run", "tables": {name: file}, …}
    DIR/hours-<run>.parquet     its tables; small, a file each. The module of the job says which, with their columns
    DIR/lateness.png            its picture

    found = Results("/var/lib/wheel/lateness")
    found.summary["missed"]
    found.rows("hours", columns=["task", "queue", "hour", "p99_ms"])
    reading("/var/lib/wheel/lateness", lambda found: found.rows("hours"))    the same, once more if files went

Promises
    ``summary.json`` is written last and put into place whole, and the files that it names stay until two runs later:
    who reads while a job writes has the one run or the other, never half of each. A folder that something else fills,
    file by file, may be seen half filled: that is an error in words, and ``reading`` looks once more.

Non-promises
    Only names and columns that the module of a job tells are kept from version to version. ``format`` is another number
    where that changes, and reading then is an error in words, not a guess.
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

T = TypeVar("T")


def reading(folder: str | Path, read: Callable[[Results], T]) -> T:
    """What ``read`` makes of the results; from the summary on once more where their files were not to be read."""
    try:
        return read(Results(folder))
    except FileUnusable:
        return read(Results(folder))


class Results:
    """What a job left in a folder, of the last run that came to its end.

    Raises:
        FileUnusable: there is none, or it is of another format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        path = self.folder / SUMMARY
        try:
            self.summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise FileUnusable(f"{path} is not there: no job has written results into this folder") from None
        except (OSError, ValueError, RecursionError) as error:
            raise FileUnusable(f"{path} is not the summary of a job: {error}") from None
        found = self.summary.get("format") if isinstance(self.summary, dict) else None
        if found != FORMAT:
            raise FileUnusable(f"{path} must be of format {FORMAT}, got {found!r}; run the job again with this version")
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
        """When the run began; None where the summary does not tell it."""
        try:
            return datetime.strptime(str(self.summary.get("run")).partition("-")[0], "%Y%m%dT%H%M%SZ").replace(
                tzinfo=UTC
            )
        except ValueError:
            return None

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One of ``tables``; ``columns`` leaves out what is not needed, above all the sketches."""
        return self.piece(name, columns)[0]

    def piece(
        self, name: str, columns: Sequence[str] | None = None, most: int | None = None, *, last: bool = False
    ) -> tuple[pa.Table, int]:
        """(the first ``most`` rows of a table, or its last ones; how many rows it has). The others are not read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if name not in self.summary["tables"]:
            raise FileUnusable(f"{self.folder} has no table {name!r} of {self.job}; it has {', '.join(self.tables)}")
        path = self.folder / str(self.summary["tables"][name])
        try:
            with pq.ParquetFile(path) as file:
                if missing := [one for one in columns or () if one not in file.schema_arrow.names]:
                    raise FileUnusable(f"{path} has no column {', '.join(missing)}; run {self.job} again")
                groups = _groups(file.metadata, most, last)
                found = file.read_row_groups(groups, columns=columns and list(columns))
                rows = file.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise FileUnusable(f"{path} cannot be read: {error}; run {self.job} again if that does not pass") from error
        if most is not None and found.num_rows > most:
            found = found.slice(found.num_rows - most if last else 0, most)
        return found, rows

    def rows(self, name: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The same as plain rows; instants have a zone: UTC."""
        found: list[dict[str, Any]] = self.table(name, columns).to_pylist()
        return found


def _groups(metadata: Any, most: int | None, last: bool) -> list[int]:
    """The row groups that have the first ``most`` rows, or the last ones."""
    groups = list(range(metadata.num_row_groups))
    taken, rows = [], 0
    for group in reversed(groups) if last else groups:
        if most is not None and rows >= most:
            break
        taken.append(group)
        rows += metadata.row_group(group).num_rows
    return sorted(taken)
