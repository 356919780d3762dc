"""The worker's side: a task reads its schedule's instant, the scheduler hears that a run has ended, and monitoring sees
when a delayed task was dispatched (``dispatch_time``).

::

    message with the header wheel_occurrence ─► worker ─► self.request.wheel         ``occurrence``
                                                  │
                                                  └ the run is over: success, failure, revoked, rejected, time limit
                                                      └ run_reports ─► reporter ─► wheel queue of the schedule's shard

Only an occurrence whose schedule needs the end of its runs (any overlap but "allow") is reported. A retry is a part of
the run. Producers import no module of this package: ``celery_wheel.app`` names its steps, and a worker imports them.

Promises: a run that goes on is never reported; a report that the broker has confirmed is not lost, and may come twice.
Non-promises: a report is lost with its worker. Then the run counts as over ``max_runtime_ms`` after it was due.
"""
