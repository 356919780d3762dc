"""The tables of the store, and how PostgreSQL is to look after them."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

import django_wheel.fields
from celery_wheel.store.postgresql import server


def set_parameters(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in server.STATEMENTS:
            schema_editor.execute(statement)


_INSTANT = "instant, Unix milliseconds"


def _options(table: str, **more: Any) -> dict[str, Any]:
    return {"db_table": table, "default_permissions": (), **more}


def _instant(of: str = "", **more: Any) -> Any:
    return models.BigIntegerField(db_comment=f"{of}; {_INSTANT}" if of else _INSTANT, **more)


def _surrogate() -> Any:
    comment = "no meaning; Django wants a single key"
    return django_wheel.fields.Surrogate(db_comment=comment, primary_key=True, serialize=False)


def _page(name: str, of: str, **names: Any) -> migrations.CreateModel:
    """Return the model of a page of the admin, without a table of its own."""
    options = {**names, "proxy": True, "default_permissions": (), "indexes": [], "constraints": []}
    return migrations.CreateModel(name, [], options, bases=(f"django_wheel.{of}",))


PERMISSIONS = [
    ("view_wheel", "Can view the wheel"),
    ("view_payload", "Can view arguments, headers and bodies"),
    ("operate_wheel", "Can operate the wheel"),
    ("manage_schedules", "Can manage recurring schedules"),
    ("erase_data", "Can erase all data of a task, a key, a group or a schedule"),
]


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="DictionaryRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        db_comment="no meaning; Django wants a single key", primary_key=True, serialize=False
                    ),
                ),
                ("made_ms", _instant()),
                (
                    "content",
                    models.BinaryField(
                        db_comment="a dictionary of zstd; encrypted, if the rows that are packed by it are"
                    ),
                ),
                ("replaces", models.BooleanField(db_comment="rows of earlier dictionaries are packed anew")),
            ],
            options=_options("wheel_dictionary"),
        ),
        migrations.CreateModel(
            name="MetaRow",
            fields=[
                ("id", models.SmallIntegerField(db_comment="always 1", primary_key=True, serialize=False)),
                (
                    "schema_version",
                    models.IntegerField(db_comment="version of this description that the tables follow"),
                ),
                ("uuid", models.UUIDField(db_comment="made with the store; brokers keep it beside the offset")),
                (
                    "secret",
                    models.UUIDField(
                        db_comment="made with the store, at random; a part of the ids that the store derives"
                    ),
                ),
                ("shards", models.SmallIntegerField(db_comment="number of shards of the store")),
                (
                    "brokers",
                    models.TextField(
                        db_comment="places of the broker to which it dispatches, a line each; none: no scheduler ran",
                        null=True,
                    ),
                ),
            ],
            options=_options("wheel_meta"),
        ),
        migrations.CreateModel(
            name="SchedulerRow",
            fields=[
                (
                    "name",
                    django_wheel.fields.NameKey(
                        db_comment="host, a random part, process id", primary_key=True, serialize=False
                    ),
                ),
                ("seen_ms", _instant("its last sign of life")),
            ],
            options=_options("wheel_scheduler"),
        ),
        migrations.CreateModel(
            name="ShardRow",
            fields=[
                (
                    "shard",
                    models.SmallIntegerField(
                        db_comment="number of the shard, from 0", primary_key=True, serialize=False
                    ),
                ),
                (
                    "epoch",
                    models.BigIntegerField(
                        db_comment="raised whenever the shard is taken; an older epoch may write nothing"
                    ),
                ),
                (
                    "holder",
                    models.TextField(db_comment="the scheduler that holds the shard; none: it was given up", null=True),
                ),
                ("lease_until_ms", _instant("end of the holder's lease", null=True)),
                ("seq", models.BigIntegerField(db_comment="highest seq taken")),
                ("history_bytes", models.BigIntegerField(db_comment="sum of the settlements' bytes")),
                (
                    "archived",
                    models.BigIntegerField(db_comment="an archive has all settlements and outcomes up to this number"),
                ),
                (
                    "forgotten",
                    models.BigIntegerField(
                        db_comment="highest number of the settlements and outcomes that were forgotten"
                    ),
                ),
                (
                    "packing",
                    models.BigIntegerField(db_comment="its rows are packed by no earlier dictionary than this"),
                ),
                (
                    "accepted",
                    models.BigIntegerField(
                        db_comment="messages accepted so far, by which a holder finds that the store lost some"
                    ),
                ),
            ],
            options=_options("wheel_shard"),
        ),
        migrations.CreateModel(
            name="SnapshotRow",
            fields=[
                (
                    "shard",
                    models.SmallIntegerField(
                        db_comment="number of the shard, from 0", primary_key=True, serialize=False
                    ),
                ),
                ("at_ms", _instant("time of the snapshot", null=True)),
                ("figures", models.TextField(db_comment="figures of the holder; JSON object", null=True)),
                (
                    "levels",
                    models.TextField(
                        db_comment="levels of the holder's wheel, 60 kB for a thousand buckets; JSON array", null=True
                    ),
                ),
            ],
            options=_options("wheel_snapshot"),
        ),
        migrations.CreateModel(
            name="AnswerRow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        db_comment="chosen by the sender of the command; UUID", primary_key=True, serialize=False
                    ),
                ),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("at_ms", _instant("time of the answer")),
                ("results", models.TextField(db_comment="JSON object: task id to done, already, too_late or unknown")),
            ],
            options=_options(
                "wheel_answer",
                indexes=[models.Index(fields=["shard", "at_ms"], name="wheel_answer_age")],
            ),
        ),
        migrations.CreateModel(
            name="AuditRow",
            fields=[
                ("id", _surrogate()),
                (
                    "chain",
                    models.SmallIntegerField(
                        db_comment="its chain: number of the shard; -1: of acts on the whole store"
                    ),
                ),
                ("number", models.BigIntegerField(db_comment="its place in the chain, from 1")),
                ("request", models.TextField(db_comment="chosen by the asker, the same in each shard; UUIDv7")),
                ("at_ms", _instant("time of asking")),
                ("origin", models.TextField(db_comment="admin, cli, api, program, control, source or unknown")),
                ("actor", models.TextField(db_comment="the person, or the process")),
                ("action", models.TextField(db_comment="cancel, reschedule, pause, schedule_update and others")),
                ("reason", models.TextField(db_comment="reason, for people")),
                ("details", models.TextField(db_comment="JSON object: arguments of the action")),
                ("bulk", models.TextField(db_comment="the bulk action that it is a part of", null=True)),
                (
                    "results",
                    models.TextField(
                        db_comment="JSON object: name of a task, schedule, key or gate to its result in the shard"
                    ),
                ),
                (
                    "salt",
                    models.TextField(
                        db_comment="of content; none: reason, details and results were erased; hexadecimal",
                        null=True,
                    ),
                ),
                (
                    "content",
                    models.TextField(db_comment="SHA-256 of the salt, reason, details and results; hexadecimal"),
                ),
                (
                    "digest",
                    models.TextField(
                        db_comment="SHA-256 of the digest before, and of all values but those in content; hexadecimal"
                    ),
                ),
            ],
            options=_options(
                "wheel_audit",
                indexes=[
                    models.Index(fields=["at_ms", "request"], name="wheel_audit_time"),
                    models.Index(fields=["origin", "at_ms", "request"], name="wheel_audit_origin"),
                ],
                constraints=[models.UniqueConstraint(fields=("chain", "number"), name="wheel_audit_place")],
            ),
        ),
        migrations.CreateModel(
            name="AuditChainRow",
            fields=[
                (
                    "chain",
                    models.SmallIntegerField(db_comment="as in the audit log", primary_key=True, serialize=False),
                ),
                ("number", models.BigIntegerField(db_comment="number of the last entry")),
                ("digest", models.TextField(db_comment="digest of the last entry")),
                (
                    "base_number",
                    models.BigIntegerField(db_comment="number of the last entry that retention has removed; 0: none"),
                ),
                ("base_digest", models.TextField(db_comment="digest of that entry")),
            ],
            options=_options("wheel_audit_chain"),
        ),
        _page("Audit", "auditrow", verbose_name_plural="audit log"),
        migrations.CreateModel(
            name="BulkRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("action", models.TextField(db_comment="id of the bulk action, chosen by the asker; UUIDv7")),
                ("state", models.TextField(db_comment="running, stopped, finished or discarded")),
                (
                    "request",
                    models.TextField(
                        db_comment="JSON object: the act, its filter, the person, the reason and the time of asking"
                    ),
                ),
                (
                    "progress",
                    models.TextField(
                        db_comment="JSON object: how far the shard has come, and the number of tasks by result"
                    ),
                ),
                ("changed_ms", _instant("time of the last step or change of the state")),
                (
                    "stepped_ms",
                    _instant("the same, while it is running; the earliest has the next step", null=True),
                ),
            ],
            options=_options(
                "wheel_bulk",
                indexes=[
                    models.Index(
                        condition=models.Q(stepped_ms__isnull=False),
                        fields=["shard", "stepped_ms"],
                        name="wheel_bulk_running",
                    ),
                ],
                constraints=[models.UniqueConstraint(fields=("action", "shard"), name="wheel_bulk_place")],
            ),
        ),
        migrations.CreateModel(
            name="SettlementRow",
            fields=[
                ("id", django_wheel.fields.GivenKey(db_comment="a seq", primary_key=True, serialize=False)),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("lane", models.BigIntegerField(db_comment="number of the lane")),
                ("from_due_ms", _instant("the settlement begins after this position")),
                ("from_seq", models.BigIntegerField(db_comment="second half of that position")),
                ("to_due_ms", _instant("the settlement ends with this position")),
                ("to_seq", models.BigIntegerField(db_comment="second half of that position")),
                ("count", models.IntegerField(db_comment="messages that the broker confirmed")),
                ("bytes", models.BigIntegerField(db_comment="their size; bytes")),
                ("dispatched_ms", _instant("time of the dispatch")),
                ("epoch", models.BigIntegerField(db_comment="epoch of the holder that settled them")),
            ],
            options=_options(
                "wheel_settlement",
                indexes=[
                    models.Index(fields=["shard", "id"], name="wheel_settlement_age"),
                    models.Index(fields=["shard", "lane", "dispatched_ms"], name="wheel_settlement_dispatched"),
                    models.Index(fields=["shard", "lane", "to_due_ms", "to_seq"], name="wheel_settlement_range"),
                ],
            ),
        ),
        _page("Settlement", "settlementrow", verbose_name="settlement", verbose_name_plural="settlements"),
        _page("Lateness", "settlementrow", verbose_name_plural="lateness"),
        migrations.CreateModel(
            name="GateRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("scope", models.TextField(db_comment="all, queue, task or group")),
                ("name", models.TextField(db_comment="name of the queue or the task; empty: all")),
                (
                    "state",
                    models.TextField(
                        db_comment="paused; or slow: it was resumed, and its backlog is dispatched evenly"
                    ),
                ),
                (
                    "per_ms",
                    models.BigIntegerField(
                        db_comment="time in which a slow gate dispatches its backlog; duration in milliseconds"
                    ),
                ),
                ("reason", models.TextField(db_comment="reason, for people")),
                ("actor", models.TextField(db_comment="user or part that did it")),
                ("at_ms", _instant()),
            ],
            options=_options(
                "wheel_gate",
                constraints=[models.UniqueConstraint(fields=("shard", "scope", "name"), name="wheel_gate_place")],
            ),
        ),
        migrations.CreateModel(
            name="LineRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                (
                    "number",
                    models.BigIntegerField(db_comment="in its shard; a number is used again once no row has it"),
                ),
                ("group", models.TextField(db_comment="name of the group; empty: rows without a group")),
                (
                    "queue",
                    models.TextField(db_comment="queue, or routing key where the producer named no queue"),
                ),
                ("waiting", models.BigIntegerField(db_comment="rows that wait in it")),
            ],
            options=_options(
                "wheel_line",
                constraints=[models.UniqueConstraint(fields=("shard", "number"), name="wheel_line_place")],
            ),
        ),
        _page("Group", "linerow", verbose_name="group", verbose_name_plural="groups"),
        migrations.CreateModel(
            name="LimitRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("group", models.TextField(db_comment="name of the group")),
                (
                    "concurrency",
                    models.IntegerField(db_comment="most runs in flight; none: as its class has it", null=True),
                ),
                (
                    "rate_count",
                    models.IntegerField(db_comment="most tasks in rate_per_ms; none: as its class has it", null=True),
                ),
                ("rate_per_ms", models.BigIntegerField(db_comment="duration in milliseconds", null=True)),
                (
                    "weight",
                    models.IntegerField(
                        db_comment="its share beside other groups; none: as its class has it", null=True
                    ),
                ),
                (
                    "max_runtime_ms",
                    models.BigIntegerField(
                        db_comment="a run counts as over after it; duration in milliseconds", null=True
                    ),
                ),
                ("actor", models.TextField(db_comment="the person or part that set it")),
                ("at_ms", _instant()),
            ],
            options=_options(
                "wheel_limit",
                constraints=[models.UniqueConstraint(fields=("shard", "group"), name="wheel_limit_place")],
            ),
        ),
        migrations.CreateModel(
            name="RateRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("group", models.TextField(db_comment="name of the group")),
                (
                    "empty_ms",
                    models.BigIntegerField(db_comment="its rate is as unused from then on; instant, Unix milliseconds"),
                ),
            ],
            options=_options(
                "wheel_rate",
                constraints=[models.UniqueConstraint(fields=("shard", "group"), name="wheel_rate_place")],
            ),
        ),
        migrations.CreateModel(
            name="InboxRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        db_comment="no meaning; Django wants a single key", primary_key=True, serialize=False
                    ),
                ),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("kind", models.TextField(db_comment="message, messages, or the name of a command")),
                (
                    "payload",
                    models.BinaryField(db_comment="the message, some messages packed, or the command's arguments"),
                ),
                ("rows", models.IntegerField(db_comment="messages in it, where they are packed", null=True)),
                ("bulk", models.TextField(db_comment="the bulk action that a command is about", null=True)),
            ],
            options=_options(
                "wheel_inbox",
                indexes=[
                    models.Index(condition=models.Q(bulk__isnull=False), fields=["bulk"], name="wheel_inbox_bulk"),
                    models.Index(fields=["shard", "id"], name="wheel_inbox_shard"),
                ],
            ),
        ),
        migrations.CreateModel(
            name="LaneRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("lane", models.BigIntegerField(db_comment="number of the lane, from 0")),
                ("offset_due_ms", _instant("rows up to this position are settled")),
                ("offset_seq", models.BigIntegerField(db_comment="second half of the offset's position")),
                ("watermark_due_ms", _instant("rows up to this position may be published")),
                ("watermark_seq", models.BigIntegerField(db_comment="second half of the watermark's position")),
                (
                    "target",
                    models.TextField(db_comment="the destination or gate that it is for; none: for all", null=True),
                ),
                ("redelivered", models.BooleanField(db_comment="its rows may be in their queues already")),
                (
                    "scope",
                    models.TextField(
                        db_comment="queue or task, where the target is a gate; none: a destination", null=True
                    ),
                ),
                ("closed", models.BooleanField(db_comment="it has no pending rows and gets none")),
            ],
            options=_options(
                "wheel_lane",
                constraints=[models.UniqueConstraint(fields=("shard", "lane"), name="wheel_lane_place")],
            ),
        ),
        migrations.CreateModel(
            name="LoadChunkRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        db_comment="no meaning; Django wants a single key", primary_key=True, serialize=False
                    ),
                ),
                ("load", models.BigIntegerField(db_comment="id of the load")),
                ("part", models.IntegerField(db_comment="number of the part, from 0")),
                ("number", models.IntegerField(db_comment="number of its slice of the part's rows, from 0")),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("rows", models.IntegerField(db_comment="messages in it")),
                (
                    "digest",
                    models.TextField(db_comment="hash of the slice's rows and of the template of their messages"),
                ),
                ("payload", models.BinaryField(db_comment="the messages, packed")),
            ],
            options=_options(
                "wheel_load_chunk",
                indexes=[models.Index(fields=["load", "shard", "id"], name="wheel_load_chunk_shard")],
                constraints=[
                    models.UniqueConstraint(fields=("load", "part", "number", "shard"), name="wheel_load_chunk_place")
                ],
            ),
        ),
        migrations.CreateModel(
            name="LoadPartRow",
            fields=[
                ("id", _surrogate()),
                ("load", models.BigIntegerField(db_comment="id of the load")),
                ("part", models.IntegerField(db_comment="number of the part, from 0")),
                ("run", models.BigIntegerField(db_comment="run of the load in which it was claimed")),
                (
                    "attempt",
                    models.TextField(db_comment="the attempt that may write it; an older attempt may write nothing"),
                ),
            ],
            options=_options(
                "wheel_load_part",
                constraints=[models.UniqueConstraint(fields=("load", "part"), name="wheel_load_part_place")],
            ),
        ),
        migrations.CreateModel(
            name="LoadRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        db_comment="no meaning; Django wants a single key", primary_key=True, serialize=False
                    ),
                ),
                (
                    "name",
                    models.TextField(
                        db_comment="chosen by the loading process; at most one load of a name is committed"
                    ),
                ),
                (
                    "state",
                    models.TextField(db_comment="open, committed, done (committed and wholly accepted) or aborted"),
                ),
                (
                    "run",
                    models.BigIntegerField(
                        db_comment="raised whenever the load is begun or resumed; an older run may write nothing"
                    ),
                ),
                ("created_ms", _instant("time of its first begin")),
                ("begun_ms", _instant("begin of its last run")),
                ("ended_ms", _instant("time of the commit or abort", null=True)),
                ("rows", models.BigIntegerField(db_comment="messages in it, once it is committed")),
                ("origin", models.TextField(db_comment="as in the audit log; empty while it is open")),
                (
                    "actor",
                    models.TextField(
                        db_comment="the person or the process that committed or aborted it; empty while it is open"
                    ),
                ),
                ("audited", models.BooleanField(db_comment="the audit log has its end")),
            ],
            options=_options(
                "wheel_load",
                indexes=[models.Index(fields=["state", "id"], name="wheel_load_state")],
                constraints=[models.UniqueConstraint(fields=("name",), name="wheel_load_name")],
            ),
        ),
        migrations.CreateModel(
            name="OutcomeRow",
            fields=[
                ("id", django_wheel.fields.GivenKey(db_comment="a seq", primary_key=True, serialize=False)),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("timer_id", models.BigIntegerField(db_comment="id of the timer")),
                ("kind", models.TextField(db_comment="cancelled, moved, expired or rejected")),
                ("reason", models.TextField(db_comment="reason, for people")),
                ("actor", models.TextField(db_comment="user or part that did it")),
                ("at_ms", _instant()),
            ],
            options=_options(
                "wheel_outcome",
                indexes=[
                    models.Index(fields=["shard", "kind", "at_ms"], name="wheel_outcome_kind"),
                    models.Index(fields=["timer_id"], name="wheel_outcome_timer"),
                ],
            ),
        ),
        _page("Rejected", "outcomerow", verbose_name_plural="rejected tasks"),
        migrations.CreateModel(
            name="RevisionRow",
            fields=[
                ("id", _surrogate()),
                ("schedule", models.BigIntegerField(db_comment="id of the schedule")),
                ("number", models.IntegerField(db_comment="revision of the schedule that the change made")),
                ("name", models.TextField(db_comment="name of the schedule")),
                (
                    "what",
                    models.TextField(db_comment="created, changed, paused, resumed, deleted, imported or rolled back"),
                ),
                ("actor", models.TextField(db_comment="user or part that did it")),
                ("reason", models.TextField(db_comment="reason, for people")),
                ("at_ms", _instant("time of the change")),
                (
                    "before",
                    models.TextField(db_comment="JSON object: the schedule before the change; empty: it did not exist"),
                ),
            ],
            options=_options(
                "wheel_revision",
                indexes=[models.Index(fields=["name", "id"], name="wheel_revision_name")],
                constraints=[models.UniqueConstraint(fields=("schedule", "number"), name="wheel_revision_number")],
            ),
        ),
        migrations.CreateModel(
            name="RouteRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        db_comment="no meaning; Django wants a single key", primary_key=True, serialize=False
                    ),
                ),
                ("digest", models.BinaryField(db_comment="of the other columns; 16 bytes")),
                ("task", models.TextField(db_comment="name of the task")),
                ("exchange", models.TextField(db_comment="exchange to publish to; empty: the default exchange")),
                ("exchange_type", models.TextField(db_comment="direct, topic, fanout, …")),
                ("routing_key", models.TextField(db_comment="routing key to publish with")),
                ("queue", models.TextField(db_comment="name of the queue, if the producer named one", null=True)),
                ("priority", models.IntegerField(db_comment="AMQP priority", null=True)),
                (
                    "queue_expires_ms",
                    models.BigIntegerField(db_comment="x-expires of the queue; duration in milliseconds", null=True),
                ),
                ("batch", models.IntegerField(db_comment="up to so many calls of a batch are one message", null=True)),
                (
                    "signed",
                    models.BooleanField(
                        db_comment="a key of wheel_signing_keys has signed its messages, which wheel_destinations does not limit"
                    ),
                ),
                ("target", models.TextField(db_comment="queue, or routing key where the producer named no queue")),
            ],
            options=_options(
                "wheel_route",
                indexes=[
                    models.Index(fields=["target"], name="wheel_route_target"),
                    models.Index(fields=["task"], name="wheel_route_task"),
                ],
                constraints=[models.UniqueConstraint(fields=("digest",), name="wheel_route_digest")],
            ),
        ),
        migrations.CreateModel(
            name="RunRow",
            fields=[
                (
                    "timer_id",
                    django_wheel.fields.GivenKey(db_comment="id of the timer", primary_key=True, serialize=False),
                ),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("schedule", models.BigIntegerField(db_comment="id of the schedule, if it is of one", null=True)),
                ("instant_ms", _instant("intended time, of a schedule", null=True)),
                ("requested", models.BooleanField(db_comment="triggered or backfilled")),
                ("group", models.TextField(db_comment="the group that it counts for", null=True)),
                ("until_ms", _instant("end of its time in the group, whatever is reported", null=True)),
                ("ended_ms", _instant("end that its worker reported", null=True)),
            ],
            options=_options(
                "wheel_run",
                indexes=[
                    models.Index(
                        condition=models.Q(schedule__isnull=False),
                        fields=["schedule", "instant_ms", "timer_id"],
                        name="wheel_run_instant",
                    ),
                    models.Index(
                        condition=models.Q(ended_ms__isnull=True, group__isnull=False),
                        fields=["shard", "timer_id"],
                        name="wheel_run_open",
                    ),
                ],
            ),
        ),
        migrations.CreateModel(
            name="ScheduleRow",
            fields=[
                ("id", django_wheel.fields.GivenKey(db_comment="a seq", primary_key=True, serialize=False)),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                (
                    "name",
                    models.TextField(db_comment="unique in the store; its shard is that of its group, or of the name"),
                ),
                (
                    "definition",
                    models.TextField(db_comment="JSON object: recurrence, task, arguments, options and policies"),
                ),
                ("source", models.TextField(db_comment="api, or the source that it follows")),
                ("revision", models.IntegerField(db_comment="1 when it is created; each change adds one")),
                ("next_ms", _instant("next instant to be made, if any", null=True)),
                ("made", models.BigIntegerField(db_comment="occurrences made so far")),
                ("last_ms", _instant("last instant that was made", null=True)),
                ("paused", models.BooleanField(db_comment="it has no next instant until it is resumed")),
                ("note", models.TextField(db_comment="reason for which it is paused, broken or failing")),
                ("broken", models.BooleanField(db_comment="it does not run, for the reason in note")),
                ("since_ms", _instant("later instants have no skip yet", null=True)),
            ],
            options=_options(
                "wheel_schedule",
                indexes=[models.Index(fields=["shard", "next_ms", "id"], name="wheel_schedule_due")],
                constraints=[models.UniqueConstraint(fields=("name",), name="wheel_schedule_name")],
            ),
        ),
        _page("Schedule", "schedulerow", verbose_name="schedule", verbose_name_plural="schedules"),
        migrations.CreateModel(
            name="ScheduleSkipRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("schedule", models.BigIntegerField(db_comment="id of the schedule")),
                ("from_ms", _instant("first skipped occurrence")),
                ("to_ms", _instant("last skipped occurrence")),
                ("count", models.BigIntegerField(db_comment="skipped occurrences; negative: more than so many")),
                ("reason", models.TextField(db_comment="paused, overlapped, missed, excluded or gap")),
                ("at_ms", _instant("time of the decision")),
            ],
            options=_options(
                "wheel_schedule_skip",
                indexes=[models.Index(fields=["shard", "at_ms"], name="wheel_schedule_skip_age")],
                constraints=[models.UniqueConstraint(fields=("schedule", "from_ms"), name="wheel_schedule_skip_first")],
            ),
        ),
        _page("Shard", "shardrow", verbose_name="shard", verbose_name_plural="shards"),
        _page("Wheel", "shardrow", verbose_name="wheel", verbose_name_plural="wheel", permissions=PERMISSIONS),
        migrations.CreateModel(
            name="TallyRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("hour", models.IntegerField(db_comment="due_ms // 3,600,000; hours since 1970")),
                (
                    "route",
                    models.BigIntegerField(
                        db_comment="id of the route that has the queue and the task, and nothing else"
                    ),
                ),
                ("pending", models.BigIntegerField(db_comment="pending messages")),
            ],
            options=_options(
                "wheel_tally",
                constraints=[models.UniqueConstraint(fields=("shard", "route", "hour"), name="wheel_tally_place")],
            ),
        ),
        _page("Forecast", "tallyrow", verbose_name_plural="forecast from archive"),
        migrations.CreateModel(
            name="TimerRow",
            fields=[
                (
                    "id",
                    django_wheel.fields.GivenKey(
                        db_comment="first seq of the row; never changes", primary_key=True, serialize=False
                    ),
                ),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                (
                    "lane",
                    models.BigIntegerField(
                        db_comment="number of its lane; -1: it is stopped, -2: it waits for its group"
                    ),
                ),
                ("due_ms", _instant("first half of its position")),
                (
                    "seq",
                    models.BigIntegerField(
                        db_comment="second half of its position; counter << 8 | shard, new with every move"
                    ),
                ),
                (
                    "eta_ms",
                    models.BigIntegerField(
                        db_comment="requested by the producer; instant, Unix milliseconds, rounded up"
                    ),
                ),
                ("envelope_id", models.BinaryField(db_comment="makes accepting idempotent; the 16 bytes of a UUID")),
                (
                    "task_id",
                    models.BinaryField(
                        db_comment="Celery's task id; the 16 bytes of a UUID, or text after a zero byte"
                    ),
                ),
                ("route", models.BigIntegerField(db_comment="id of its task and destination")),
                ("key", models.TextField(db_comment="tasks with the same key share a shard", null=True)),
                (
                    "group",
                    models.TextField(db_comment="its group: tasks of a group share a shard and limits", null=True),
                ),
                (
                    "line",
                    models.BigIntegerField(
                        db_comment="of a row that waits for its group: number of the line << 9 | rank", null=True
                    ),
                ),
                ("expires_ms", _instant("the task's own expires", null=True)),
                ("created_ms", _instant("time of sending, by the producer")),
                ("accepted_ms", _instant("time of accepting")),
                (
                    "size",
                    models.IntegerField(
                        db_comment="headers, properties and body together, before they are packed; bytes"
                    ),
                ),
                (
                    "misfire_ms",
                    models.BigIntegerField(
                        db_comment="it expires when it is found later than this; duration in milliseconds", null=True
                    ),
                ),
                (
                    "packing",
                    models.BigIntegerField(db_comment="id of the dictionary by which message is packed; 0: none"),
                ),
                (
                    "message",
                    models.BinaryField(
                        db_comment=("headers, properties and body, packed and encrypted; an unreadable message's bytes")
                    ),
                ),
            ],
            options=_options(
                "wheel_timer",
                indexes=[
                    models.Index(
                        condition=models.Q(line__isnull=False),
                        fields=["shard", "line", "due_ms", "seq"],
                        name="wheel_timer_line",
                    ),
                    models.Index(fields=["shard", "lane", "due_ms", "seq", "size"], name="wheel_timer_position"),
                    models.Index(fields=["shard", "task_id"], name="wheel_timer_task"),
                ],
                constraints=[models.UniqueConstraint(fields=("shard", "envelope_id"), name="wheel_timer_envelope")],
            ),
        ),
        _page("History", "timerrow", verbose_name_plural="history"),
        _page("Pending", "timerrow", verbose_name="pending task", verbose_name_plural="pending tasks"),
        migrations.CreateModel(
            name="TombstoneRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                ("task_id", models.TextField(db_comment="Celery's task id")),
                ("until_ms", _instant("removed after this")),
                ("reason", models.TextField(db_comment="reason, for people")),
                ("actor", models.TextField(db_comment="user or part that did it")),
            ],
            options=_options(
                "wheel_tombstone",
                constraints=[models.UniqueConstraint(fields=("shard", "task_id"), name="wheel_tombstone_place")],
            ),
        ),
        migrations.CreateModel(
            name="TotalRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                (
                    "kind",
                    models.TextField(
                        db_comment="shard, hour, day or name: a sum of the tally for it; route: rows with it"
                    ),
                ),
                (
                    "number",
                    models.BigIntegerField(
                        db_comment="0; of the hour or the day since 1970; of a name and of a route, the route"
                    ),
                ),
                ("pending", models.BigIntegerField(db_comment="pending messages; of a route, all rows")),
            ],
            options=_options(
                "wheel_total",
                constraints=[models.UniqueConstraint(fields=("kind", "number", "shard"), name="wheel_total_place")],
            ),
        ),
        migrations.CreateModel(
            name="WatchRow",
            fields=[
                ("id", _surrogate()),
                ("shard", models.SmallIntegerField(db_comment="number of the shard, from 0")),
                (
                    "kind",
                    models.TextField(
                        db_comment="watch: the key completes it; unique: it alone has the key; unannounced: cancelled, to be announced"
                    ),
                ),
                ("key", models.TextField(db_comment="the key, a name chosen by producers")),
                ("timer_id", models.BigIntegerField(db_comment="id of the timer")),
                (
                    "latest_ms",
                    models.BigIntegerField(
                        db_comment="a task that takes its place is due by then; instant, Unix milliseconds", null=True
                    ),
                ),
                (
                    "window_ms",
                    models.BigIntegerField(
                        db_comment="the key stays taken after the eta; duration in milliseconds", null=True
                    ),
                ),
            ],
            options=_options(
                "wheel_watch",
                indexes=[
                    models.Index(fields=["shard", "kind", "key", "timer_id"], name="wheel_watch_key"),
                    models.Index(fields=["timer_id"], name="wheel_watch_timer"),
                ],
            ),
        ),
        migrations.RunPython(set_parameters, migrations.RunPython.noop),
    ]
