"""The benchmarks: ``python -m tests.benchmarks``, or ``make bench``.

::

    wheel    TimingWheel against heapq and kombu's Timer, a process each
    kombu    kombu's own consume and publish: the yardstick of the next
    spine    ingest, dispatch, both at once, memory and restart, with millions of rows pending

    __main__ ─► wheel
             └► spine ─► kombu                    on the same Redis server, in the same run
                      ├► letters                  the load, serialised beforehand: making it is never timed
                      └► scheduler (a process)    the real Runner with its threads, on a clock that can be moved

Servers and files are their own, in a folder that goes when the run ends. Each bench yields figures (``figure``).
"""
