"""The results of the jobs, read back for pages and programs: few lines from many rows, by Arrow, without Spark.

::

    reader        a job's folder: summary and tables
    figures       hours-….parquet/         ──► a line for each task and queue, the worst first, with its last 48 hours
                  minutes-….parquet/       ──► tasks due a minute, and an hour after that
                  herds-, drain-….parquet/ ──► the largest herds, the longest waits
    backlog       counts by the hour       ──► the time until a backlog is drained; needs no Arrow

Promises
    1. Sketches are never read, and of a table at most ``figures.MAX_ROWS`` rows; omitted rows are counted.
    2. Counts, maxima and misses are exact. Percentiles are those of one hour of one task and queue, as the job wrote
       them: a line of several hours names the worst hour, because an average of percentiles has no meaning.
       Percentiles of a day need the sketches, and Spark: ``celery_wheel.pipeline.jobs.lateness.merge_hours``.

This package imports none of its modules: they import pyarrow, which a web process needs only for these pages.
"""
