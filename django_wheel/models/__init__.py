"""The store's tables as Django models, where ``wheel_store`` names an entry of ``DATABASES``.

They are for ``migrate`` and for reading. Only a scheduler writes these tables, under its lease; a row that anybody else
changes is a task that is lost or runs twice. ``celery_wheel.store.schema`` says what each table is for.

::

    log       messages, lanes, settlements          asked     requests, answers, and what they leave
    holders   shards, schedulers                    loads     bulk loads
    pages     models without a table of their own: the pages of the admin, and its two permissions
"""

from __future__ import annotations

from django_wheel.models.asked import Answer, Gate, Inbox, Tombstone, Watch
from django_wheel.models.holders import Meta, Scheduler, Shard
from django_wheel.models.loads import Load, LoadChunk, LoadPart
from django_wheel.models.log import Batch, Lane, Outcome, Payload, Tally, Timer
from django_wheel.models.pages import Forecast, History, Lateness, Pending, Rejected, Wheel

__all__ = [
    "Answer",
    "Batch",
    "Forecast",
    "Gate",
    "History",
    "Inbox",
    "Lane",
    "Lateness",
    "Load",
    "LoadChunk",
    "LoadPart",
    "Meta",
    "Outcome",
    "Payload",
    "Pending",
    "Rejected",
    "Scheduler",
    "Shard",
    "Tally",
    "Timer",
    "Tombstone",
    "Watch",
    "Wheel",
]
