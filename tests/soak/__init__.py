"""Hours of work under faults, run after run on one store: the parts of the product that only age are seen here.

::

    make soak HOURS=2 KEEP=folder [PAIR=postgresql-redis] [OUTAGE=35] [RATE=300] [SEED=7]

    1 ``load``       300 tasks a second, due in a second to an hour; schedules; cancels, and what was answered
    2 ``faults``     one a minute, drawn from the seed; and one outage of a server, for OUTAGE minutes
    3 ``consumer``   takes every message from the queue of the tasks, and writes down which it was, and when
    4 ``gauges``     memory, descriptors, threads, log, files, dead rows, depths of queues: every ten seconds
    5 ``judge``      after the load: compares what was sent and answered with what arrived, in SQL, over all runs
    6 ``picture``    plots of the gauges and of the lateness, over all runs

    producer ──► broker ──► scheduler "young" ─┐ store, 2 shards
                    │       scheduler "old"   ─┘ is never killed, so that it grows old
                    └──► consumer ──► ledger ◄── producer, cancels, gauges, faults

A run has a folder KEEP/<pair>, with the data of its servers, its store, its ledger (a SQLite file, ``ledger``) and the
logs of each run. The next run on that folder goes on with all of them: tasks that were pending are expected then. The
outage is of the broker and of the store by turns. A run that is interrupted (Ctrl-C, SIGTERM, kill -9) is no different,
only that its schedules are not judged.

The judge uses none of the product's code, and reads nothing that the product has written: the producer writes a task
down before it sends it. The judge counts tasks that were accepted and did not arrive, that came early, twice or twice
without a mark, out of order, though they were cancelled, or from nowhere; and the instants of schedules.
"""
