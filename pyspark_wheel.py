"""By this name Spark finds the data source ``wheel`` by itself; see ``celery_wheel.pipeline.source``."""

from celery_wheel.pipeline.source import WheelDataSource as DefaultSource

__all__ = ["DefaultSource"]
