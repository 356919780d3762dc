"""The data source ``wheel``: a store as a table of Spark.

::

    spark.read.format("wheel")         pending or history, in partitions    .load()
    spark.readStream.format("wheel")   history, each row once               .load()
    df.write.format("wheel")           a bulk load, all of it or nothing    .mode("append").save()
    df.writeStream.format("wheel")     a bulk load for each micro-batch     .start()

Spark discovers it where the module ``pyspark_wheel`` is installed; elsewhere register ``WheelDataSource``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from celery_wheel.errors import SettingError
from celery_wheel.pipeline.source.options import SourceOptions, read_options
from celery_wheel.pipeline.source.statements import HISTORY, schema
from celery_wheel.pipeline.spark_errors import concise

if TYPE_CHECKING:
    from celery_wheel.pipeline.source.read import WheelReader
    from celery_wheel.pipeline.source.stream import WheelStreamReader
    from celery_wheel.pipeline.source.write import WheelStreamWriter


class WheelDataSource(DataSource):
    """The imports inside methods spare a read what only a write needs, Celery above all, and the other way round."""

    @classmethod
    def name(cls) -> str:
        return "wheel"

    @concise()
    def schema(self) -> StructType:
        """Return all columns; with ``.schema("task string, eta timestamp")`` Spark reads only those."""
        return schema(self._options().table)

    @concise()
    def reader(self, schema: StructType) -> WheelReader:
        from celery_wheel.pipeline.source.read import WheelReader

        return WheelReader(self._options(), schema)

    @concise()
    def streamReader(self, schema: StructType) -> WheelStreamReader:  # noqa: N802 - Spark's name
        from celery_wheel.pipeline.source.stream import WheelStreamReader

        options = self._options()
        if options.table != HISTORY:
            raise SettingError(
                f"table of a stream must be {HISTORY}, got {options.table}; .option('table', '{HISTORY}')"
            )
        return WheelStreamReader(options, schema)

    @concise()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from celery_wheel.pipeline.source.write import make_writer

        return make_writer(self.options, schema, overwrite)

    @concise()
    def streamWriter(self, schema: StructType, overwrite: bool) -> WheelStreamWriter:  # noqa: N802 - Spark's name
        from celery_wheel.pipeline.source.write import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)

    def _options(self) -> SourceOptions:
        return read_options(self.options)
