"""The results of the jobs, read back for pages and programs: few lines from many rows, by Arrow, without Spark.

::

    reader        a job's folder: summary and tables
    figures       hours-….parquet/         ──► a line for each task and queue, the worst first, with its last 48 hours
                  minutes-….parquet/       ──► tasks due a minute, and an hour after that
                  herds-, drain-….parquet/ ──► the largest herds, the longest waits
    backlog       counts by the hour       ──► the time until a backlog is drained; needs no Arrow

Promises: of a table at most ``figures.MAX_ROWS`` rows are read; omitted rows are counted. Counts, maxima and misses are
exact. Percentiles are those of one hour of one task and queue; a line of several hours names the worst hour, because an
average of percentiles has no meaning (``celery_wheel.pipeline.jobs.lateness.merge_hours`` computes those of a day).
"""
