"""Bulk scheduling: very many delayed tasks straight into the store, as ``apply_async`` would have sent them.

::

    rows ──► row.Reader ──► Call ──► writing.Writing ──► (shard, bytes) ──► many ──► the store's inbox, a group a commit
                                      ├─ fast: template, the parts that differ put into a message of the same kind
                                      └─ slow: catching, it stands in for the producer under Celery's own code

The broker has no part in it: nothing waits for it, and it may be away.
"""

from __future__ import annotations

from celery_wheel.bulk.many import Rejected, Scheduled, schedule_many

__all__ = ["Rejected", "Scheduled", "schedule_many"]
