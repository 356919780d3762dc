"""An archive: the history as Parquet that only grows, and a manifest that names the files that count.

::

    DIR/run=20261120T0800Z-1f2e3d4c/day=2026-11-20/part-….parquet   of one run; no other run ever writes there
    DIR/_manifest/<group>/<marks>-<serial>-<run>/part-….txt         ``celery_wheel.archive.reader`` has its form

    archive    1 manifest read (of a new archive: an empty one written) ─► 2 store surveyed
               ─► 3 new events written to run=… ─► 4 read back, counted
               ─► 5 manifest written ─► 6 the store's mark ─► 7 manifest with that mark
    compact    1 manifest read ─► 2 the files of a day written to run=… as few ─► 3 read back, counted
               ─► 4 manifest written ─► 5 after --keep, the replaced files removed

    runs       a run of each of these jobs, and the step that writes a manifest beside other runs
    folder     files written, counted, removed; manifests read and written: by Spark's own readers and writers alone,
               so that an archive may be on any storage that Spark can write

A run costs the events that are new. A reader has the files of one manifest (``read_archive``, and without Spark
``celery_wheel.archive``).

A kill leaves
    before the manifest      files that nobody reads: the next run archives their events again, and ``compact`` removes
                             them after --keep. A manifest is one file, which Spark moves to its place: never a half
    after the manifest       all events in their place; the next run moves the store's mark
    while files are removed  some of them: the next ``compact`` removes the rest

Two runs at once
    ``commit`` reads the last manifest, applies the change to it, writes, and reads again: a compaction and an archive
    run both take effect. If two archive runs meet, the one that commits later stops. If both write at the same instant,
    the manifest with the higher marks counts: it names every event up to its marks once, because the numbers
    (mark, number] are the same events at every read. Files of the other are removed like those of a killed run.
    A file that is replaced stays for --keep, so neither a reader nor such a run misses it.

Files are sorted by queue and task, then in the order of their numbers, in row groups of 100,000 rows with minimum and
maximum of each column: DuckDB, Polars and Spark skip days by the folder, tasks and queues by these.
"""
