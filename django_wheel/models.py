"""Django models of the store's tables, for a ``wheel_store`` in ``DATABASES``, and of the admin's pages.

The models serve ``migrate`` and reading. Only a scheduler writes the tables, under its lease: a row that another
program changes is a task that is lost or runs twice. ``celery_wheel.store.sql.schema`` has the columns and explains
each table. The pages are models without a table of their own; ``Wheel`` carries the five permissions.
"""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from celery_wheel.store.sql import schema
from django_wheel.fields import StoreTable

# -- the log: messages and their bytes, lanes with their offsets, settlements, outcomes and counts ---------------------


class TimerRow(StoreTable, table=schema.timer, text="message {0.id}"): ...


class RouteRow(StoreTable, table=schema.route, text="{0.task} to {0.target}"): ...


class DictionaryRow(StoreTable, table=schema.dictionary, text="dictionary {0.id}"): ...


class LaneRow(StoreTable, table=schema.lane, text="lane {0.lane} of shard {0.shard}"): ...


class SettlementRow(StoreTable, table=schema.settlement, text="{0.count} messages of shard {0.shard}"): ...


class OutcomeRow(StoreTable, table=schema.outcome, text="{0.kind}: {0.reason}"): ...


class TallyRow(StoreTable, table=schema.tally, text="{0.pending} of route {0.route}"): ...


class TotalRow(StoreTable, table=schema.total, text="{0.pending} of {0.kind} {0.number}"): ...


# -- shards with the snapshots of their holders, schedulers, and the identity of the store -----------------------------


class ShardRow(StoreTable, table=schema.shard, text="shard {0.shard}"): ...


class SnapshotRow(StoreTable, table=schema.snapshot, text="snapshot of shard {0.shard}"): ...


class SchedulerRow(StoreTable, table=schema.scheduler, text="{0.name}"): ...


class MetaRow(StoreTable, table=schema.meta, text="{0.uuid}"): ...


# -- requests to the holders, their answers, bulk actions, tombstones, claims on keys, and gates ----------------------


class InboxRow(StoreTable, table=schema.inbox, text="{0.kind} {0.id}"): ...


class AnswerRow(StoreTable, table=schema.answer, text="{0.id}"): ...


class BulkRow(StoreTable, table=schema.bulk, text="{0.state} {0.action} of shard {0.shard}"): ...


class AuditRow(StoreTable, table=schema.audit, text="{0.action} by {0.actor}"): ...


class AuditChainRow(StoreTable, table=schema.audit_chain, text="chain {0.chain}"): ...


class TombstoneRow(StoreTable, table=schema.tombstone, text="{0.task_id}"): ...


class WatchRow(StoreTable, table=schema.watch, text="{0.kind} {0.key}"): ...


class GateRow(StoreTable, table=schema.gate, text="{0.scope} {0.name}"): ...


# -- groups: lines of rows that wait, limits of single groups, and used rates ------------------------------------------


class LineRow(StoreTable, table=schema.line, text="{0.waiting} of {0.group} for {0.queue}"): ...


class LimitRow(StoreTable, table=schema.limit, text="limits of {0.group}"): ...


class RateRow(StoreTable, table=schema.rate, text="used rate of {0.group}"): ...


# -- recurring schedules, their changes, what became of their instants, and runs ---------------------------------------


class ScheduleRow(StoreTable, table=schema.schedule, text="{0.name}"): ...


class RevisionRow(StoreTable, table=schema.revision, text="{0.what} {0.name}"): ...


class ScheduleSkipRow(StoreTable, table=schema.schedule_skip, text="{0.count} {0.reason} of schedule {0.schedule}"): ...


class RunRow(StoreTable, table=schema.run, text="run of message {0.timer_id}"): ...


# -- bulk loads, their parts, and their messages that no holder has accepted yet ---------------------------------------


class LoadRow(StoreTable, table=schema.load, text="{0.name}: {0.state}"): ...


class LoadPartRow(StoreTable, table=schema.load_part, text="{0.part} of {0.load}"): ...


class LoadChunkRow(StoreTable, table=schema.load_chunk, text="{0.number} of {0.part} of {0.load}"): ...


#: Django keeps these names in a table, as the project's language has them when it migrates.
PERMISSIONS = [
    ("view_wheel", "Can view the wheel"),
    ("view_payload", "Can view arguments, headers and bodies"),
    ("operate_wheel", "Can operate the wheel"),
    ("manage_schedules", "Can manage recurring schedules"),
    ("erase_data", "Can erase all data of a task, a key, a group or a schedule"),
]


class Wheel(ShardRow, permissions=PERMISSIONS, verbose_name=_("wheel"), verbose_name_plural=_("wheel")): ...


class Pending(TimerRow, verbose_name=_("pending task"), verbose_name_plural=_("pending tasks")): ...


class Schedule(ScheduleRow, verbose_name=_("schedule"), verbose_name_plural=_("schedules")): ...


class Group(LineRow, verbose_name=_("group"), verbose_name_plural=_("groups")): ...


class History(TimerRow, verbose_name_plural=_("history")): ...


class Rejected(OutcomeRow, verbose_name_plural=_("rejected tasks")): ...


class Lateness(SettlementRow, verbose_name_plural=_("lateness")): ...


class Forecast(TallyRow, verbose_name_plural=_("forecast from archive")): ...


class Audit(AuditRow, verbose_name_plural=_("audit log")): ...


class Settlement(SettlementRow, verbose_name=_("settlement"), verbose_name_plural=_("settlements")): ...


class Shard(ShardRow, verbose_name=_("shard"), verbose_name_plural=_("shards")): ...
