"""An archive: the history as Parquet, a folder for each day, and the state that the job ``archive`` keeps there.

::

    survey     the events that a store has for an archive: numbers, days, and losses to retention
    events     events as rows of the archive: each once, in order
    folder     days read, staged, replaced and counted: by Spark's own readers and writers alone, so that an archive may
               be on any storage that Spark can write
    state      the progress of the archive, with an interrupted run
    run        the steps of a run
"""
