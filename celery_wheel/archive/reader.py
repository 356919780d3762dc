"""Reading an archive with pyarrow alone, on any storage that pyarrow knows: a folder, ``s3://…``, ``hdfs://…``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_wheel.archive.model import MANIFESTS, DataFile, Manifest, last_manifest, parse_manifest
from celery_wheel.errors import FileUnusable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

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
        return parse_manifest(stream.read().decode(), name)


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
