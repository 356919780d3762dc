"""The results of a job, read back: by the admin, by programs. pyarrow and the standard library only, so no Java.

::

    DIR/summary.json            what the job said: {"job", "format", "run", "tables": {name: file}, …}
    DIR/hours-<run>.parquet     its tables; small, a file each. The module of the job says which, with their columns
    DIR/lateness.png            its picture

    found = Results("/var/lib/wheel/lateness")
    found.summary["missed"]
    found.rows("hours", columns=["task", "queue", "hour", "p99_ms"])

Promises
    ``summary.json`` is written last and put into place whole, and the files that it names stay until two runs later:
    who reads while a job writes has the one run or the other, never half of each.

Non-promises
    Only names and columns that the module of a job tells are kept from version to version. ``format`` is another number
    where that changes, and reading then is an error in words, not a guess.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_wheel.errors import FileUnusable

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
SUMMARY = "summary.json"


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
        except ValueError as error:
            raise FileUnusable(f"{path} is not the summary of a job: {error}") from None
        found = self.summary.get("format") if isinstance(self.summary, dict) else None
        if found != FORMAT:
            raise FileUnusable(f"{path} must be of format {FORMAT}, got {found!r}; run the job again with this version")

    @property
    def job(self) -> str:
        return str(self.summary["job"])

    @property
    def tables(self) -> list[str]:
        return sorted(self.summary["tables"])

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One of ``tables``; ``columns`` leaves out what is not needed, above all the sketches."""
        import pyarrow.parquet as pq

        if name not in self.summary["tables"]:
            raise FileUnusable(f"{self.folder} has no table {name!r} of {self.job}; it has {', '.join(self.tables)}")
        return pq.read_table(self.folder / self.summary["tables"][name], columns=columns and list(columns))

    def rows(self, name: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The same as plain rows; instants have a zone: UTC."""
        found: list[dict[str, Any]] = self.table(name, columns).to_pylist()
        return found
