"""Recurring schedules in the scheduler process: the parts of the engine that need Celery.

::

    engine ─ an instant is due ──► renderer   the message that apply_async would send, by bulk_load's templates
           │                          ├ capture   by the base scheduler's own apply_entry, where a project changes it
           │                          └ declare   its queue exists before it
           └ a run is replaced ──► overlap    cancels the earlier run: pending, published or running

An occurrence's message has the header ``wheel_occurrence``, which the worker's side reads (``celery_wheel.worker``)::

    {"schedule": "report", "id": 1793, "shard": 0, "scheduled_for": 1793664000000, "previous": 1793660400000,
     "report": false}       instants are Unix milliseconds; report: the scheduler needs to know when the run ends
"""
