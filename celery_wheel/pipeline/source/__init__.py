"""The data source ``wheel``: a store as a table of Spark.

::

    df.write.format("wheel")           options ─► write    a bulk load, all of it or nothing     .mode("append").save()
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter
from pyspark.sql.types import StructType

from celery_wheel.pipeline.source.write import refuse_overwrite, writer


class WheelDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "wheel"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            refuse_overwrite()
        return writer(self.options, schema)
