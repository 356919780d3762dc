"""The module by whose name Spark discovers the data source ``wheel``; see ``celery_wheel.pipeline.source``."""

from celery_wheel.pipeline.source import WheelDataSource as DefaultSource

__all__ = ["DefaultSource"]
