"""The scheduler as a node of Celery's own remote control: what people type for workers works for what waits.

::

    celery.pidbox ──► node ──► commands ──► store     revoke: into the inbox of every shard
                       │          └──► forms          scheduled, query_task, stats: as a worker answers
                       └──► pulse ──► celeryev        worker-online, worker-heartbeat, worker-offline
    engine ── announce ──► books                      REVOKED, chords, task-revoked: as a worker does
                             └── message              the request in a waiting message; no pickle is ever loaded

Every scheduler is a node of its own name and answers about the shards that it holds, so nothing is told twice.
"""
