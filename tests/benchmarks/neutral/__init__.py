"""The wheel in a benchmark that others made: hardbyte's postgresql-job-queue-benchmarking.

::

    git clone https://github.com/hardbyte/postgresql-job-queue-benchmarking peers
    python -m tests.benchmarks.neutral peers --systems wheel,procrastinate --producer-rate 200 \\
        --phase warmup=warmup:30s --phase clean=clean:60s --phase pinned=idle-in-tx:60s

    peers' harness ── DATABASE_URL, "ENQUEUE 20" ──► adapter ──► schedule_many ──► PostgreSQL ◄── beat ──► Redis
          ▲                                             ▲                                                    │
          └── JSON lines: rates, latencies, depth ──────┴───────── a datagram a job ◄── celery worker ◄──────┘

The harness runs as it is, with its phases, its pacing and its judge; ``run`` lends it what its Docker images hold: a
PostgreSQL of this machine with the harness's own settings, a Redis for the wheel, and the Python of each adapter. Every
option after the folder is the harness's. It needs the packages that its pyproject.toml names, for each Python system
those of its folder, and Python 3.12: name that interpreter in ``PEERS_PYTHON``.

The wheel's job is a Celery task that is due a millisecond after it is sent, since a task without a delay does not pass
the wheel. So the entry pays for what the others do not have: a broker behind PostgreSQL, and Celery's worker.
``DEFERRED`` is a number of tasks that are pending for a day before the first phase.
"""
