"""The state of an archive: one line of JSON in its folder ``_state``, written by Spark as all its files are.

::

    done, marks      all events up to the marks are in their days
    staged, marks    the staging folder has all changed days; from here on a run is only finished, any number of times

    _state/a   _state/b    written in turn: if a run is killed while it writes one, the other is intact

A run stops when another run has written the state since it began. It checks before and after each write, and before it
moves the store's mark; a run that finishes an interrupted one writes that into the state first. No storage that Spark
can write to has a lock for this: two runs may still change a day at once, and the count of its events then differs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from celery_wheel.errors import FileUnusable

DONE, STAGED = "done", "staged"
SLOTS = ("a", "b")
FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """One state; ``serial`` rises with each write."""

    serial: int
    step: str
    store: str
    marks: dict[int, int]
    gaps: list[dict[str, Any]] = field(default_factory=list)  #: every loss of this archive so far
    staging: str = ""
    days: dict[str, int] = field(default_factory=dict)  #: events of each staged day, after it is replaced
    added: dict[str, int] = field(default_factory=dict)  #: new events by outcome
    lost: list[dict[str, Any]] = field(default_factory=list)
    noted: dict[int, int] = field(default_factory=dict)  #: marks that were written to the store
    run: str = ""  #: name of the run that wrote it


class ArchiveStateFile:
    """Reads and writes the state, and detects other runs."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._known: ArchiveState | None = None  #: the state that this run read or wrote last

    def begin(self) -> ArchiveState | None:
        """Read the last state, against which later checks compare; None of a new archive."""
        self._known = self._read_last()
        return self._known

    def _read_last(self) -> ArchiveState | None:
        path = f"{self._path}/_state/*"
        rows = none_if_absent(lambda: self._spark.read.text(path).collect()) or []
        return max((_parse(path, row.value) for row in rows), key=lambda state: state.serial, default=None)

    def write(self, state: ArchiveState) -> None:
        self.check()
        line = json.dumps({"format": FORMAT, **asdict(state)}, sort_keys=True)
        rows = self._spark.createDataFrame([(line,)], "value string").coalesce(1)
        rows.write.mode("overwrite").text(f"{self._path}/_state/{SLOTS[state.serial % len(SLOTS)]}")
        self._known = state
        self.check()  # of two runs that wrote at the same time, one finds the other's state

    def check(self) -> None:
        """Raise FileUnusable where another run has written since this run did."""
        if self._read_last() != self._known:
            raise FileUnusable(
                f"another run writes to the archive {self._path} at the same time; this one stopped; "
                "start a run only after the last one has ended"
            )


def none_if_absent(read: Callable[[], T]) -> T | None:
    """Return the result of ``read``, or None where its path does not exist."""
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _parse(path: str, line: str) -> ArchiveState:
    fields = json.loads(line)
    if fields.pop("format", None) != FORMAT:
        raise FileUnusable(f"{path} was written by another version of celery-wheel; run: pip install -U celery-wheel")
    marks = {name: {int(shard): mark for shard, mark in fields.get(name, {}).items()} for name in ("marks", "noted")}
    return ArchiveState(**{**fields, **marks})
