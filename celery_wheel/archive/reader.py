"""The manifest of an archive, and the files that it names, read on any storage that pyarrow knows: s3://…, hdfs://….

::

    DIR/_manifest/<group>/<marks>-<serial>-<run>/part-….txt    one line of JSON; the greatest name counts
    DIR/run=<run>/day=2026-11-20/part-….parquet                data: only files that this manifest names count

``<marks>`` is the sum of the marks. If two runs write a manifest at once, the one that has archived more counts: no
storage that Spark can write has a lock, and none is needed, as each names each event up to its marks once. A later
version only adds columns (``schema`` is its number): a file of an earlier version has nulls in them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from celery_wheel.errors import FileUnusable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


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
    gaps: list[dict[str, int | str | None]] = field(default_factory=list)  #: every loss of this archive so far
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


class _Head(msgspec.Struct):
    format: int


def parse_manifest(line: str | bytes, place: str) -> Manifest:
    """Parse the line of a manifest. Raises FileUnusable; ``place`` names the file in its message."""
    try:
        if msgspec.json.decode(line, type=_Head).format != FORMAT:
            raise FileUnusable(
                f"{place} was written by another version of celery-wheel; run: pip install -U celery-wheel"
            )
        return msgspec.json.decode(line, type=Manifest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise FileUnusable(f"{place} is not the manifest of an archive: {error}; restore it from a copy") from error


def last_manifest(paths: Iterable[str]) -> str | None:
    """Return the path of the manifest that counts, of the paths of all files below ``_manifest``."""
    found = (path.split("/") for path in paths)
    # The files of a writer that was killed are in a folder of their own.
    complete = [parts for parts in found if len(parts) > 3 and parts[-4] == MANIFESTS and parts[-1].startswith("part-")]
    last = max(complete, key=lambda parts: parts[-2], default=None)
    return None if last is None else "/".join(last)


#: A day ("2027-01-15"), or the first and the last of several.
Days = str | tuple[str, str] | None
Names = str | Sequence[str] | None


def manifest(path: str) -> Manifest:
    """Return the manifest of the archive at ``path``. Raises FileUnusable where there is none."""
    from pyarrow import fs

    storage, folder = _open(path)
    found = storage.get_file_info(fs.FileSelector(f"{folder}/{MANIFESTS}", recursive=True, allow_not_found=True))
    name = last_manifest(info.path for info in found if info.is_file)
    if name is None:
        raise FileUnusable(f"{path} is no archive: it has no manifest; the job archive writes one")
    with storage.open_input_stream(name) as stream:
        return parse_manifest(stream.read(), name)


def files(path: str, days: Days = None) -> list[str]:
    """Return the data files of an archive, or of some of its days, for DuckDB, Polars and others."""
    return [f"{path.rstrip('/')}/{file.path}" for file in select_files(manifest(path), days)]


def dataset(path: str, days: Days = None) -> ds.Dataset:
    """Return an archive as a dataset, with a column ``day``; columns that a file lacks are null."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    found, (storage, folder) = manifest(path), _open(path)
    day = pa.schema([("day", pa.string())])
    return ds.dataset(
        [f"{folder}/{file.path}" for file in select_files(found, days)],
        schema=pa.unify_schemas([_schema(found), day]),
        format="parquet",
        filesystem=storage,
        partitioning=ds.partitioning(day, flavor="hive"),
    )


def read(
    path: str,
    *,
    days: Days = None,
    task: Names = None,
    queue: Names = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the events of an archive; files and row groups that cannot have any are not read.

    Args:
        days: a day ("2027-01-15", in UTC), or the first and the last of several.
        task, queue: a name, or several.
        columns: all of them, if None.
    """
    import pyarrow.dataset as ds

    condition = ds.scalar(True)
    for column, names in (("task", task), ("queue", queue)):
        if names is not None:
            condition &= ds.field(column).isin([names] if isinstance(names, str) else [*names])
    return dataset(path, days).to_table(columns=columns and list(columns), filter=condition)


def select_files(found: Manifest, days: Days = None) -> list[DataFile]:
    """Return the files of some days, by day."""
    first, last = (days, days) if isinstance(days, str) else days or ("", "~")
    return sorted((file for file in found.files if first <= file.day <= last), key=lambda file: file.day)


def _open(path: str) -> tuple[Any, str]:
    from pyarrow import fs

    if "://" not in path:
        return fs.LocalFileSystem(), path.rstrip("/")
    storage, folder = fs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1))
    return storage, folder.rstrip("/")


def _schema(found: Manifest) -> pa.Schema:
    import pyarrow as pa

    types = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}
    if unknown := {*found.columns.values()} - {*types}:
        raise FileUnusable(
            f"the archive has columns of the types {', '.join(sorted(unknown))}, which this version of celery-wheel "
            "does not know; run: pip install -U celery-wheel"
        )
    return pa.schema([(name, types[kind]) for name, kind in found.columns.items()])
