"""Django models of the store's tables, for a ``wheel_store`` in ``DATABASES``, and of the admin's pages.

The models serve ``migrate`` and reading. Only a scheduler writes the tables, under its lease: a row that another
program changes is a task that is lost or runs twice. ``celery_wheel.store.sql.schema`` has the columns and explains
each table. The pages are models without a table of their own; ``Wheel`` carries the four permissions.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from celery_wheel.store.sql import schema
from django_wheel.fields import StoreTable

# -- the log: messages and their bytes, lanes with their offsets, batches, outcomes and counts ---------------------


class TimerRow(StoreTable, table=schema.timer, text="message {0.id}"):
    """A message, from its acceptance until retention removes it."""


class RouteRow(StoreTable, table=schema.route, text="{0.task} to {0.target}"):
    """The task and the destination of messages."""


class DictionaryRow(StoreTable, table=schema.dictionary, text="dictionary {0.id}"):
    """A dictionary of zstd: the common text of messages, by which they are packed."""


class LaneRow(StoreTable, table=schema.lane, text="lane {0.lane} of shard {0.shard}"):
    """A sequence of messages with an offset and a watermark of its own."""


class BatchRow(StoreTable, table=schema.batch, text="{0.count} messages of shard {0.shard}"):
    """A batch: a range of positions that the broker has confirmed."""


class OutcomeRow(StoreTable, table=schema.outcome, text="{0.kind}: {0.reason}"):
    """The outcome of a message that was not dispatched at its time."""


class TallyRow(StoreTable, table=schema.tally, text="{0.pending} of route {0.route}"):
    """The number of pending messages of a queue and a task in an hour."""


class TotalRow(StoreTable, table=schema.total, text="{0.pending} of {0.kind} {0.number}"):
    """A sum of these numbers: of an hour, of a day, or of a queue and a task."""


# -- shards with the snapshots of their holders, schedulers, and the identity of the store -----------------------------


class ShardRow(StoreTable, table=schema.shard, text="shard {0.shard}"):
    """A shard, and its holder."""


class SnapshotRow(StoreTable, table=schema.snapshot, text="snapshot of shard {0.shard}"):
    """The last figures of a shard's holder."""


class SchedulerRow(StoreTable, table=schema.scheduler, text="{0.name}"):
    """A scheduler, and the time of its last sign of life."""


class MetaRow(StoreTable, table=schema.meta, text="{0.uuid}"):
    """The one row that identifies the store."""


# -- requests to the holders, their answers, tombstones, claims on keys, and gates -------------------------------------


class InboxRow(StoreTable, table=schema.inbox, text="{0.kind} {0.id}"):
    """A request or a message that another process wrote for the holder."""


class AnswerRow(StoreTable, table=schema.answer, text="{0.id}"):
    """The results of a command."""


class AuditRow(StoreTable, table=schema.audit, text="{0.action} by {0.actor}"):
    """A shard's part of a person's request."""


class TombstoneRow(StoreTable, table=schema.tombstone, text="{0.task_id}"):
    """A task id that was cancelled before the task arrived."""


class WatchRow(StoreTable, table=schema.watch, text="{0.kind} {0.key}"):
    """A task's claim on a key."""


class GateRow(StoreTable, table=schema.gate, text="{0.scope} {0.name}"):
    """A pause, or a slow resume, of a queue, a task or everything."""


# -- recurring schedules, their changes, and what became of their instants ---------------------------------------------


class ScheduleRow(StoreTable, table=schema.schedule, text="{0.name}"):
    """A recurring schedule, and its next instant."""


class RevisionRow(StoreTable, table=schema.revision, text="{0.what} {0.name}"):
    """A change of a schedule."""


class ScheduleRunRow(StoreTable, table=schema.schedule_run, text="{0.timer_id} of schedule {0.schedule}"):
    """An occurrence of a schedule, and the message that it became."""


class ScheduleSkipRow(StoreTable, table=schema.schedule_skip, text="{0.count} {0.reason} of schedule {0.schedule}"):
    """Consecutive occurrences of a schedule that did not run."""


# -- bulk loads, their parts, and their messages that no holder has accepted yet ---------------------------------------


class LoadRow(StoreTable, table=schema.load, text="{0.name}: {0.state}"):
    """A bulk load."""


class LoadPartRow(StoreTable, table=schema.load_part, text="{0.part} of {0.load}"):
    """A part of a bulk load, and the attempt that may write it."""


class LoadChunkRow(StoreTable, table=schema.load_chunk, text="{0.number} of {0.part} of {0.load}"):
    """Messages of a bulk load that no holder has accepted yet."""


#: Django keeps these names in a table, as the project's language has them when it migrates.
PERMISSIONS = [
    ("view_wheel", "Can view the wheel"),
    ("view_payload", "Can view arguments, headers and bodies"),
    ("operate_wheel", "Can operate the wheel"),
    ("manage_schedules", "Can manage recurring schedules"),
]


class Wheel(ShardRow, permissions=PERMISSIONS, verbose_name=_("wheel"), verbose_name_plural=_("wheel")):
    """The page of the wheel."""


class Pending(TimerRow, verbose_name=_("pending task"), verbose_name_plural=_("pending tasks")):
    """The page of pending tasks."""


class Schedule(ScheduleRow, verbose_name=_("schedule"), verbose_name_plural=_("schedules")):
    """The page of recurring schedules."""


class History(TimerRow, verbose_name_plural=_("history")):
    """The page of dispatched tasks."""


class Rejected(OutcomeRow, verbose_name_plural=_("rejected tasks")):
    """The page of rejected tasks, and of the other outcomes."""


class Lateness(BatchRow, verbose_name_plural=_("lateness")):
    """The page of the job ``lateness``."""


class Forecast(TallyRow, verbose_name_plural=_("forecast from archive")):
    """The page of the job ``forecast``."""


class Audit(AuditRow, verbose_name_plural=_("audit log")):
    """The page of the audit log."""


class Batch(BatchRow, verbose_name=_("batch"), verbose_name_plural=_("batches")):
    """The page of batches."""


class Shard(ShardRow, verbose_name=_("shard"), verbose_name_plural=_("shards")):
    """The page of shards."""
