"""Bulk scheduling: very many delayed tasks straight into the store, as ``apply_async`` would have sent them.

::

    row.Reader ─────────┐                                    ┌──► many      one item of the inbox each, a group a commit
    (schedule_many)     ├──► Call ──► Renderer.render ──► Line
    columns ────────────┘              │    └ Form + values  └──► columns   some hundred in one chunk of a bulk load
    (the Spark writer)                 │
                                       ├─ sample     Celery's own code makes the first two messages of a kind
                                       ├─ form       the first is its form; the second has to come out the same by it
                                       └─ overrides  somebody else's code may have a part in a message: all are samples

The broker has no part in it: nothing waits for it, and it may be away.
"""

from __future__ import annotations

from celery_wheel.bulk.many import Rejected, Scheduled, schedule_many

__all__ = ["Rejected", "Scheduled", "schedule_many"]
