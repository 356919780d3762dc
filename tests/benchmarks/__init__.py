"""The benchmarks: ``python -m tests.benchmarks``, or ``make bench``; ``__main__`` lists them.

::

    __main__ ─► spine, lateness, disk ─► letters       the load, serialised beforehand: its making is never timed
                rabbit, many, recurring ─► child ─► scheduler     the real Runner, on a clock that can be moved
             ─► lateness ─► stream, native             a real worker of Celery in a process of its own
             ─► beats ─► beat                          the real ``celery beat -S wheel``
             ─► disk, beats, watching ─► filler        stores that are written past the engine
             ─► messages, rounds, timing               parts of the product, without a scheduler
             ─► pollers ─► poller_work                 a process of each, without this project's packages
             ─► analytics                              the jobs on Spark
    against  ─► __main__ of two checkouts, alternately
    bloat                                              PostgreSQL's tables while tasks pass

Servers and files are private, in a folder that is removed when the run ends. Progress bar and the engine's rig are
the product's (``celery_wheel.operations.bench``); of the tests only ``tests.kit`` is used.
"""
