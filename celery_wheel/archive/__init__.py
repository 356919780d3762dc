"""An archive of the history, read without Spark and Java: pyarrow alone is needed (``celery-wheel[archive]``).

A reader has each event of one manifest once, also while the jobs ``archive`` and ``compact`` write. The files remain
for a day after a job replaced them (``compact --keep``).
"""

from celery_wheel.archive.reader import dataset, files, manifest, read

__all__ = ["dataset", "files", "manifest", "read"]
