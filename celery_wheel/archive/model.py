"""The manifest of an archive: which data files have its events, and up to which number of the store.

::

    DIR/_manifest/<group>/<marks>-<serial>-<run>/part-….txt    one line of JSON; the greatest name counts
    DIR/run=<run>/day=2026-11-20/part-….parquet                data: only files that this manifest names count

``<marks>`` is the sum of the marks. If two runs write a manifest at once, the one that has archived more counts, and
otherwise the one with the greater serial. No storage that Spark can write has a lock, and none is needed:
whichever manifest counts, it names each event up to its marks once.

``columns`` declares the schema, in the types of Spark. A later version only adds columns (``schema`` is its number): a
file of an earlier version has nulls in them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_wheel.errors import FileUnusable

MANIFESTS = "_manifest"
#: The form of the manifest. The version of the columns is another number.
FORMAT = 1
#: Manifests of a folder, so that old ones can be removed together.
GROUP = 50


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of one day; ``path`` is relative to the archive, ``outcomes`` counts its events."""

    path: str
    day: str
    outcomes: dict[str, int]

    @property
    def events(self) -> int:
        return sum(self.outcomes.values())

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Manifest:
    """``serial`` rises with each manifest; ``run`` is the name of the run that wrote it."""

    serial: int
    run: str
    store: str  #: UUID of the one store of the archive; empty in the first manifest, before any event
    marks: dict[int, int]  #: by shard, the number up to which the archive has every event
    schema: int
    columns: dict[str, str]
    files: tuple[DataFile, ...] = ()  #: in the order in which they were archived
    noted: dict[int, int] = field(default_factory=dict)  #: marks that were written to the store
    gaps: list[dict[str, Any]] = field(default_factory=list)  #: every loss of this archive so far
    replaced: dict[str, int] = field(default_factory=dict)  #: folder → instant (ms) since which no file of it counts

    @property
    def name(self) -> str:
        return f"{sum(self.marks.values()):020}-{self.serial:010}-{self.run}"

    @property
    def folder(self) -> str:
        """The folder of the manifest's file, relative to the archive."""
        return f"{MANIFESTS}/{self.serial // GROUP:08}/{self.name}"

    def days(self) -> dict[str, int]:
        """Return the number of events of each day."""
        days = Counter[str]()
        for file in self.files:
            days[file.day] += file.events
        return dict(sorted(days.items()))

    def to_line(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)


def parse_manifest(line: str, place: str) -> Manifest:
    """Parse the line of a manifest. Raises FileUnusable; ``place`` names the file in its message."""
    try:
        fields = json.loads(line)
        if fields.pop("format") != FORMAT:
            raise FileUnusable(
                f"{place} was written by another version of celery-wheel; run: pip install -U celery-wheel"
            )
        marks = {name: {int(shard): mark for shard, mark in fields[name].items()} for name in ("marks", "noted")}
        return Manifest(**{**fields, **marks, "files": tuple(DataFile(**file) for file in fields["files"])})
    except (TypeError, KeyError, json.JSONDecodeError) as error:
        raise FileUnusable(f"{place} is not the manifest of an archive: {error!r}; restore it from a copy") from error


def last_manifest(paths: Iterable[str]) -> str | None:
    """Return the path of the manifest that counts, of the paths of all files below ``_manifest``."""
    complete = [path for path in paths if _is_manifest(path.split("/"))]
    return max(complete, key=lambda path: path.split("/")[-2], default=None)


def _is_manifest(parts: Sequence[str]) -> bool:
    """Tell manifests from the files of a writer that was killed, which are in a folder of their own."""
    return len(parts) > 3 and parts[-4] == MANIFESTS and parts[-1].startswith("part-")
