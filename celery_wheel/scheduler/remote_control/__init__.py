"""The scheduler as a node of Celery's own remote control: commands for workers reach pending tasks as well.

::

    celery.pidbox ──► node ──► commands ──► revocation    revoke: into the inbox of every shard
                       │          └──► inspection         scheduled, query_task, stats: with task_info, as a worker
                       └──► heartbeat ──► celeryev        worker-online, worker-heartbeat, worker-offline
    engine ── announce ──► revoked_state                  REVOKED, chords, task-revoked: as a worker does
                             └── pending_request          the request in a pending message; no pickle is ever loaded
    view                                                  the scheduler that the node answers for

Every scheduler is a node of its own name and answers about the shards that it holds, so no task is reported twice.
"""
