"""Bulk scheduling: very many delayed tasks written into the store, as ``apply_async`` would send them.

::

    RowReader ──────────┐                                          ┌──► load     some hundred in an inbox item
    (schedule_many)     ├──► TaskCall ──► Renderer ──► RenderedMessage
    columns ────────────┘                  │    template + values   └──► columns  some hundred in a pack of a bulk load
    (the Spark writer)                     │
                                           ├─ sample            Celery's own code makes the first two messages of a kind
                                           ├─ message_template  made of the first; must give the second exactly
                                           └─ overrides         other code may change messages: all are samples

Bulk scheduling does not use the broker, which may be down.
"""

from __future__ import annotations

from celery_wheel.bulk_load.load import RejectedRow, ScheduleResult, schedule_many

__all__ = ["RejectedRow", "ScheduleResult", "schedule_many"]
