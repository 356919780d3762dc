"""The store's tables as Django models, for a ``wheel_store`` that names an entry of ``DATABASES``.

The models serve ``migrate`` and reading. Only a scheduler writes the tables, under its lease: a row that another
program changes is a task that is lost or runs twice. ``celery_wheel.store.sql.schema`` explains each table.

::

    rows      a model a table, whose fields ``table`` makes from the schema
    pages     models without a table of their own: the pages of the admin, and its four permissions
"""

from __future__ import annotations

from django_wheel.models.pages import (
    Audit,
    Batch,
    Forecast,
    History,
    Lateness,
    Pending,
    Rejected,
    Schedule,
    Shard,
    Wheel,
)
from django_wheel.models.rows import (
    AnswerRow,
    AuditRow,
    BatchRow,
    DictionaryRow,
    GateRow,
    InboxRow,
    LaneRow,
    LoadChunkRow,
    LoadPartRow,
    LoadRow,
    MetaRow,
    OutcomeRow,
    RevisionRow,
    RouteRow,
    ScheduleRow,
    SchedulerRow,
    ScheduleRunRow,
    ScheduleSkipRow,
    ShardRow,
    SnapshotRow,
    TallyRow,
    TimerRow,
    TombstoneRow,
    TotalRow,
    WatchRow,
)

__all__ = [
    "AnswerRow",
    "Audit",
    "AuditRow",
    "Batch",
    "BatchRow",
    "DictionaryRow",
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
    "Pending",
    "Rejected",
    "RevisionRow",
    "RouteRow",
    "Schedule",
    "ScheduleRow",
    "ScheduleRunRow",
    "ScheduleSkipRow",
    "SchedulerRow",
    "Shard",
    "ShardRow",
    "SnapshotRow",
    "TallyRow",
    "TimerRow",
    "TombstoneRow",
    "TotalRow",
    "WatchRow",
    "Wheel",
]
