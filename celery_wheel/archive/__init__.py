"""An archive of the history, read without Spark and Java: pyarrow alone is needed (``celery-wheel[archive]``).

::

    archive.read(path, days="2027-01-15", queue="mail")   the events as an Arrow table
    archive.dataset(path)                                 the archive as a dataset of pyarrow
    archive.files(path)                                   its data files, for DuckDB, Polars and others
    archive.manifest(path)                                its manifest: marks, losses, days, columns

A reader has each event of one manifest once, also while the jobs ``archive`` and ``compact`` write. The files remain
for a day after a job replaced them (``compact --keep``).
"""

from celery_wheel.archive.reader import dataset, files, manifest, read

__all__ = ["dataset", "files", "manifest", "read"]
