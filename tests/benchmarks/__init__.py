"""The benchmarks: ``python -m tests.benchmarks``, or ``make bench``.

::

    wheel    TimingWheel against heapq and kombu's Timer, a process each
    spine    ingest, dispatch, both at once, memory and restart, with millions of rows pending; on the ``--store``
    kombu    the yardstick of spine alone: kombu's own consume and publish
    size     bytes on disk for a pending task, with arguments and without, on both databases
    herd     a million tasks that are due in one second; native Celery with 20,000
    steady   10,000 messages a second in and out, and the most both ways at once; native Celery at its best rate
    cold     dispatch of rows whose pages are on the disk; the disk's sequential read
    scale    CPU, memory and lateness as pending tasks, shards, task names and bytes grow: a table and a plot
    saturation  lateness against rate until it is not held, of the wheel and of native Celery: a table and a plot
    pollers  seven other schedulers on the same work, in a virtual environment that the bench makes
    lanes    the cost of lanes that were opened once and are empty
    many     schedule_many against a loop of apply_async, and lateness while such a load is ingested
    schedules  a message of an occurrence, and a herd of schedules that are due at one instant

    __main__ ─► wheel
             └► spine ─► letters                  the load, serialised beforehand: its making is never timed
                      └► scheduler (a process)    the real Runner with its threads, on a clock that can be moved
             └► lanes ─► letters                  an engine for each number of lanes, round by round
             └► herd, steady, saturation ─► stream, native    a real worker of Celery in a process of its own
             └► cold, scale ─► filler             stores that are written past the engine
             └► many ─► scheduler, many           processes, beside the measured one
             └► scale ─► beat                     the real ``celery beat -S wheel``
    size, cold, spine ─► databases                bytes and pages of both databases
    pollers  ─► poller_work                       a process of each, without this project's packages
    against  ─► __main__ of two checkouts, alternately

Servers and files are private, in a folder that is removed when the run ends. Figure, table, progress bar and the
engine's rig are the product's (``celery_wheel.operations.bench``); of the tests only ``tests.kit`` is used.
"""
