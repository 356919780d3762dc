"""How far an archive is: one line of JSON in its folder ``_state``, written by Spark as all else there.

::

    done, marks      all events up to the marks are in their days
    staged, marks    all of the days that a run changes is in its staging folder; from here on it is only finished,
                     however often that is begun

    _state/a   _state/b    written in turn: whatever is killed while one is written, the other stays

A run that finds that another has written since it began stops, and leaves the archive to the other.
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
class State:
    """``serial`` rises with each that is written."""

    serial: int
    step: str
    store: str
    marks: dict[int, int]
    gaps: list[dict[str, Any]] = field(default_factory=list)  #: all that was ever lost to this archive
    staging: str = ""
    days: dict[str, int] = field(default_factory=dict)  #: of each staged day, how many events are to be in it
    added: dict[str, int] = field(default_factory=dict)  #: by outcome, how many of them are new
    lost: list[dict[str, Any]] = field(default_factory=list)


class States:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    def last(self) -> State | None:
        """None of a new archive."""
        path = f"{self._path}/_state/*"
        rows = where_it_is(lambda: self._spark.read.text(path).collect()) or []
        return max((_read(path, row.value) for row in rows), key=lambda state: state.serial, default=None)

    def write(self, state: State) -> None:
        """Raises FileUnusable where another run has written since the one before ``state`` was."""
        last = self.last()
        if (last.serial if last else 0) != state.serial - 1:
            raise FileUnusable(
                f"another run writes to the archive {self._path} at the same time; this one stopped and left it as it "
                "is; let one end before the next begins"
            )
        line = json.dumps({"format": FORMAT, **asdict(state)}, sort_keys=True)
        rows = self._spark.createDataFrame([(line,)], "value string").coalesce(1)
        rows.write.mode("overwrite").text(f"{self._path}/_state/{SLOTS[state.serial % len(SLOTS)]}")


def where_it_is(read: Callable[[], T]) -> T | None:
    """None where the path that is read is not there."""
    try:
        return read()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None


def _read(path: str, line: str) -> State:
    found = json.loads(line)
    if found.pop("format", None) != FORMAT:
        raise FileUnusable(f"{path} was written by another version of celery-wheel; run: pip install -U celery-wheel")
    return State(**{**found, "marks": {int(shard): mark for shard, mark in found["marks"].items()}})
