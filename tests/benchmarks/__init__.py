"""The benchmarks: ``python -m tests.benchmarks``, or ``make bench``.

::

    wheel    TimingWheel against heapq and kombu's Timer, a process each
    kombu    kombu's own consume and publish: the yardstick of the next
    spine    ingest, dispatch, both at once, memory and restart, with millions of rows pending
    many     schedule_many against a loop of apply_async, and lateness while such a load is taken in

    __main__ ─► wheel
             └► spine ─► kombu                    on the same Redis server, in the same run
                      ├► letters                  the load, serialised beforehand: making it is never timed
                      └► scheduler (a process)    the real Runner with its threads, on a clock that can be moved
             └► many ─► scheduler, loader         processes, beside what is looked at

Servers and files are their own, in a folder that goes when the run ends. Each bench yields figures (``figure``).
"""
