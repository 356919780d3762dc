"""An archive: history as Parquet, a folder a day, and what the job ``archive`` keeps there to go on with.

::

    standing   what the store has: which numbers, which days, what of it is gone
    state      how far the archive is, and what a run that was broken off had in hand
    folder     days read, staged, replaced and counted: by Spark's own readers and writers alone, so that an archive may
               be wherever Spark can write
"""
