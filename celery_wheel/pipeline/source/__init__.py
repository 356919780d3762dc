"""The data source ``wheel``: a store as a table of Spark.

::

    spark.read.format("wheel")         options ─► read     pending or history, in parts          .load()
    spark.readStream.format("wheel")   options ─► stream   history, each row once                .load()
    df.write.format("wheel")           options ─► write    a bulk load, all of it or nothing     .mode("append").save()

    options   what can be said, and what it means
    opened    the store, on the driver
    pieces    what a task reads, as a statement      parts   how much of it      push   conditions of the query
    fetch     a statement's rows as Arrow batches

Spark finds it by itself where the module ``pyspark_wheel`` is installed; where it is not (``--py-files``), register it:
``spark.dataSource.register(WheelDataSource)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.columns import HISTORY, schema
from celery_wheel.pipeline.source.options import Options, read_options

if TYPE_CHECKING:
    from celery_wheel.pipeline.source.read import WheelReader
    from celery_wheel.pipeline.source.stream import WheelStreamReader


class WheelDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "wheel"

    def schema(self) -> StructType:
        """All columns; ``.schema("task string, eta timestamp")`` asks for fewer, and only those are read."""
        return schema(self._options().table)

    def reader(self, schema: StructType) -> WheelReader:
        from celery_wheel.pipeline.source.read import PushingReader, WheelReader

        options = self._options()
        return (PushingReader if options.pushdown else WheelReader)(options, schema)

    def streamReader(self, schema: StructType) -> WheelStreamReader:  # noqa: N802 - Spark's name
        from celery_wheel.pipeline.source.stream import WheelStreamReader

        options = self._options()
        if options.table != HISTORY:
            raise SettingError(
                f"table of a stream must be {HISTORY}, got {options.table}; .option('table', '{HISTORY}')"
            )
        return WheelStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from celery_wheel.pipeline.source.write import refuse_overwrite, writer

        if overwrite:
            refuse_overwrite()
        return writer(self.options, schema)

    def _options(self) -> Options:
        return read_options(self.options)
