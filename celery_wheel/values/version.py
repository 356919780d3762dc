"""The version of celery-wheel."""

__version__ = "0.1.0"
