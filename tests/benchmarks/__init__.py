"""The benchmarks: ``python -m tests.benchmarks``, or ``make bench``; ``__main__`` lists them.

::

    spine, lateness, disk ─► letters                    the load, serialised beforehand: its making is never timed
    rabbit, many, recurring ─► child ─► scheduler       the real Runner, on a clock that can be moved
    lateness ─► stream, native      pollers ─► poller_work      beats ─► beat      other processes
    disk, beats, watching ─► filler                     stores that are written past the engine
    against  ─► __main__ of two checkouts, alternately

Servers and files are private, in a folder that is removed when the run ends. Progress bar and the engine's rig are
the product's (``celery_wheel.operations.bench``); of the tests only ``tests.kit`` is used.
"""
