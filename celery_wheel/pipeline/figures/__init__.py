"""What a page shows of a job's results: few lines out of many rows, added up by Arrow. No Spark, so no Java.

::

    lateness   hours-….parquet    ──► a line a task and queue, the worst first; its last 48 hours, one by one
    forecast   minutes-….parquet  ──► so many due a minute, and so many an hour after that
               herds-, drain-     ──► the largest herds, the longest waits
    rows       what both need: rows of a table in milliseconds, of a queue, and the names in them

Promises
    1. Sketches are never read, and of a table at most ``rows.ROWS`` rows; what was left out is counted.
    2. Counts, maxima and misses are exact. Percentiles are those of one hour of one task and queue, as the job left
       them: of several hours there is the worst one. An average of percentiles would be the percentile of nothing.

Non-promises
    Percentiles of a day need the sketches, and Spark: ``celery_wheel.pipeline.jobs.lateness.merged``.

Only words here: the modules import pyarrow, which a web process need not have until such a page is asked for.
"""
