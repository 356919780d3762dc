"""The store's tables as Django models, for a ``wheel_store`` that names an entry of ``DATABASES``.

The models serve ``migrate`` and reading. Only a scheduler writes the tables, under its lease: a row that another
program changes is a task that is lost or runs twice. ``celery_wheel.store.sql.schema`` explains each table.

::

    log       messages, lanes, settlements          requests  requests, answers, tombstones, claims, gates
    holders   shards, schedulers                    loads     bulk loads
    pages     models without a table of their own: the pages of the admin, and its two permissions
"""

from __future__ import annotations

from django_wheel.models.holders import MetaRow, SchedulerRow, ShardRow
from django_wheel.models.loads import LoadChunkRow, LoadPartRow, LoadRow
from django_wheel.models.log import BatchRow, LaneRow, OutcomeRow, PayloadRow, TallyRow, TimerRow
from django_wheel.models.pages import Batch, Forecast, History, Lateness, Pending, Rejected, Shard, Wheel
from django_wheel.models.requests import AnswerRow, GateRow, InboxRow, TombstoneRow, WatchRow

__all__ = [
    "AnswerRow",
    "Batch",
    "BatchRow",
    "Forecast",
    "GateRow",
    "History",
    "InboxRow",
    "LaneRow",
    "Lateness",
    "LoadChunkRow",
    "LoadPartRow",
    "LoadRow",
    "MetaRow",
    "OutcomeRow",
    "PayloadRow",
    "Pending",
    "Rejected",
    "SchedulerRow",
    "Shard",
    "ShardRow",
    "TallyRow",
    "TimerRow",
    "TombstoneRow",
    "WatchRow",
    "Wheel",
]
