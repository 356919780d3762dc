"""``write``: a DataFrame as a bulk load: all of it is scheduled, or nothing, however often Spark retries its tasks.

::

    make_writer  (driver)   begin or resume the load; for a committed load, write nothing
    write        (tasks)    ``parts``: each task writes a part
    commit       (driver)   exactly the parts that Spark counts           abort   remove everything

``celery_wheel.store.sql.loads`` has the protocol behind it. A driver that is killed leaves its load open: a
repeated job with the same batch name resumes it, and does not write slices again whose rows are unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.parts import WrittenPart, find_app, now_ms, open_for_loading, part_results, write_part
from celery_wheel.pipeline.source.target import WriteTarget, read_target
from celery_wheel.pipeline.spark_errors import concise
from celery_wheel.store.store_model import BulkLoad

logger = logging.getLogger(__name__)


def refuse_overwrite() -> NoReturn:
    raise SettingError(
        "mode must be append, got overwrite: a load does not replace scheduled tasks; write with .mode('append'), and "
        "cancel unwanted tasks with celery -A proj wheel cancel"
    )


def make_writer(options: Mapping[str, str], schema: StructType) -> WheelWriter:
    """Begin or resume the load. Raises SettingError or StoreUnusable, with the remedy."""
    target = read_target(options, schema)
    if target.app is not None:
        find_app(target.app)  # an error of the driver is shorter than that of every task
    with open_for_loading(target.url) as store:
        load = store.loads.begin(target.batch, now_ms())
    if load.is_loaded:
        logger.warning("the batch %r is loaded already (%s rows); nothing was written", target.batch, f"{load.rows:,}")
    return WheelWriter(target, load)


class WheelWriter(DataSourceArrowWriter):
    """Writes the parts in the tasks, to which Spark pickles it, and commits them on the driver."""

    def __init__(self, target: WriteTarget, load: BulkLoad) -> None:
        self._target = target
        self._load = load

    @concise()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        if self._load.is_loaded:
            return WrittenPart(part)
        return write_part(self._target, part, iterator, lambda _: self._load)

    @concise()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._load.is_loaded:
            with open_for_loading(self._target.url) as store:
                store.loads.commit(self._load.id, self._load.run, part_results(messages), now_ms())

    @concise()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._load.is_loaded:
            with open_for_loading(self._target.url) as store:
                store.loads.abort(self._load.id, now_ms(), self._load.run)
