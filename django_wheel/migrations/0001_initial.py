"""The tables of the store, and how PostgreSQL is to look after them.

A line is a column with its comment. The functions say the rest of each column, so that a reader compares the lines
with ``celery_wheel.store.sql.schema``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import migrations, models

import django_wheel.fields
from celery_wheel.store.postgresql import server


def set_parameters(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for statement in server.STATEMENTS:
            schema_editor.execute(statement)


def _kind(field: type[Any], **same: Any) -> Callable[..., Any]:
    """Return a function that makes columns of one kind, each with its comment."""
    return lambda comment, **more: field(db_comment=comment, **same, **more)


_KEY: dict[str, Any] = {"primary_key": True, "serialize": False}
_INSTANT = "instant, Unix milliseconds"

_small, _whole, _big = _kind(models.SmallIntegerField), _kind(models.IntegerField), _kind(models.BigIntegerField)
_flag, _text = _kind(models.BooleanField), _kind(models.TextField)
_bytes, _uuid = _kind(models.BinaryField), _kind(models.UUIDField)
_given, _name = _kind(django_wheel.fields.GivenKey, **_KEY), _kind(django_wheel.fields.NameKey, **_KEY)


def _instant(of: str = "", **more: Any) -> Any:
    return _big(f"{of}; {_INSTANT}" if of else _INSTANT, **more)


def _shard(**more: Any) -> Any:
    return _small("number of the shard, from 0", **more)


def _number(field: type[Any] = django_wheel.fields.Surrogate) -> Any:
    return field(db_comment="no meaning; Django wants a single key", **_KEY)


def _unique(name: str, *fields: str) -> models.UniqueConstraint:
    return models.UniqueConstraint(fields=fields, name=name)


def _index(name: str, *fields: str, **where: bool) -> models.Index:
    return models.Index(fields=fields, name=name, condition=models.Q(**where) if where else None)


def _table(
    name: str, table: str, /, *keys: models.Index | models.UniqueConstraint, **fields: Any
) -> migrations.CreateModel:
    options = {
        "db_table": table,
        "default_permissions": (),
        "indexes": [key for key in keys if isinstance(key, models.Index)],
        "constraints": [key for key in keys if isinstance(key, models.UniqueConstraint)],
    }
    return migrations.CreateModel(name, list(fields.items()), options)


def _page(name: str, of: str, **names: Any) -> migrations.CreateModel:
    """Return the model of a page of the admin, without a table of its own."""
    options = {**names, "proxy": True, "default_permissions": ()}
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
        _table(
            "DictionaryRow",
            "wheel_dictionary",
            id=_number(models.BigAutoField),
            made_ms=_instant(),
            content=_bytes("a dictionary of zstd; encrypted, if the rows that are packed by it are"),
            replaces=_flag("rows of earlier dictionaries are packed anew"),
        ),
        _table(
            "MetaRow",
            "wheel_meta",
            id=_small("always 1", **_KEY),
            schema_version=_whole("version of this description that the tables follow"),
            uuid=_uuid("made with the store; brokers keep it beside the offset"),
            secret=_uuid("made with the store, at random; a part of the ids that the store derives"),
            shards=_small("number of shards of the store"),
            brokers=_text(
                "places of the broker to which it dispatches, a line each; none: no scheduler ran", null=True
            ),
        ),
        _table(
            "SchedulerRow",
            "wheel_scheduler",
            name=_name("host, a random part, process id"),
            seen_ms=_instant("its last sign of life"),
        ),
        _table(
            "ShardRow",
            "wheel_shard",
            shard=_shard(**_KEY),
            epoch=_big("raised whenever the shard is taken; an older epoch may write nothing"),
            holder=_text("the scheduler that holds the shard; none: it was given up", null=True),
            lease_until_ms=_instant("end of the holder's lease", null=True),
            seq=_big("highest seq taken"),
            history_bytes=_big("sum of the settlements' bytes"),
            archived=_big("an archive has all settlements and outcomes up to this number"),
            forgotten=_big("highest number of the settlements and outcomes that were forgotten"),
            packing=_big("its rows are packed by no earlier dictionary than this"),
            accepted=_big("messages accepted so far, by which a holder finds that the store lost some"),
        ),
        _table(
            "SnapshotRow",
            "wheel_snapshot",
            shard=_shard(**_KEY),
            at_ms=_instant("time of the snapshot", null=True),
            figures=_text("figures of the holder; JSON object", null=True),
            levels=_text("levels of the holder's wheel, 60 kB for a thousand buckets; JSON array", null=True),
        ),
        _table(
            "AnswerRow",
            "wheel_answer",
            _index("wheel_answer_age", "shard", "at_ms"),
            id=_uuid("chosen by the sender of the command; UUID", **_KEY),
            shard=_shard(),
            at_ms=_instant("time of the answer"),
            results=_text("JSON object: task id to done, already, too_late or unknown"),
        ),
        _table(
            "AuditRow",
            "wheel_audit",
            _index("wheel_audit_time", "at_ms", "request"),
            _index("wheel_audit_origin", "origin", "at_ms", "request"),
            _unique("wheel_audit_place", "chain", "number"),
            id=_number(),
            chain=_small("its chain: number of the shard; -1: of acts on the whole store"),
            number=_big("its place in the chain, from 1"),
            request=_text("chosen by the asker, the same in each shard; UUIDv7"),
            at_ms=_instant("time of asking"),
            origin=_text("admin, cli, api, program, control, source or unknown"),
            actor=_text("the person, or the process"),
            action=_text("cancel, reschedule, pause, schedule_update and others"),
            reason=_text("reason, for people"),
            details=_text("JSON object: arguments of the action"),
            bulk=_text("the bulk action that it is a part of", null=True),
            results=_text("JSON object: name of a task, schedule, key or gate to its result in the shard"),
            salt=_text("of content; none: reason, details and results were erased; hexadecimal", null=True),
            content=_text("SHA-256 of the salt, reason, details and results; hexadecimal"),
            digest=_text("SHA-256 of the digest before, and of all values but those in content; hexadecimal"),
        ),
        _table(
            "AuditChainRow",
            "wheel_audit_chain",
            chain=_small("as in the audit log", **_KEY),
            number=_big("number of the last entry"),
            digest=_text("digest of the last entry"),
            base_number=_big("number of the last entry that retention has removed; 0: none"),
            base_digest=_text("digest of that entry"),
        ),
        _page("Audit", "auditrow", verbose_name_plural="audit log"),
        _table(
            "BulkRow",
            "wheel_bulk",
            _index("wheel_bulk_running", "shard", "stepped_ms", stepped_ms__isnull=False),
            _unique("wheel_bulk_place", "action", "shard"),
            id=_number(),
            shard=_shard(),
            action=_text("id of the bulk action, chosen by the asker; UUIDv7"),
            state=_text("running, stopped, finished or discarded"),
            request=_text("JSON object: the act, its filter, the person, the reason and the time of asking"),
            progress=_text("JSON object: how far the shard has come, and the number of tasks by result"),
            changed_ms=_instant("time of the last step or change of the state"),
            stepped_ms=_instant("the same, while it is running; the earliest has the next step", null=True),
        ),
        _table(
            "SettlementRow",
            "wheel_settlement",
            _index("wheel_settlement_age", "shard", "id"),
            _index("wheel_settlement_dispatched", "shard", "lane", "dispatched_ms"),
            _index("wheel_settlement_range", "shard", "lane", "to_due_ms", "to_seq"),
            id=_given("a seq"),
            shard=_shard(),
            lane=_big("number of the lane"),
            from_due_ms=_instant("the settlement begins after this position"),
            from_seq=_big("second half of that position"),
            to_due_ms=_instant("the settlement ends with this position"),
            to_seq=_big("second half of that position"),
            count=_whole("messages that the broker confirmed"),
            bytes=_big("their size; bytes"),
            dispatched_ms=_instant("time of the dispatch"),
            epoch=_big("epoch of the holder that settled them"),
        ),
        _page("Settlement", "settlementrow", verbose_name="settlement", verbose_name_plural="settlements"),
        _page("Lateness", "settlementrow", verbose_name_plural="lateness"),
        _table(
            "GateRow",
            "wheel_gate",
            _unique("wheel_gate_place", "shard", "scope", "name"),
            id=_number(),
            shard=_shard(),
            scope=_text("all, queue, task or group"),
            name=_text("name of the queue or the task; empty: all"),
            state=_text("paused; or slow: it was resumed, and its backlog is dispatched evenly"),
            per_ms=_big("time in which a slow gate dispatches its backlog; duration in milliseconds"),
            reason=_text("reason, for people"),
            actor=_text("user or part that did it"),
            at_ms=_instant(),
        ),
        _table(
            "LineRow",
            "wheel_line",
            _unique("wheel_line_place", "shard", "number"),
            id=_number(),
            shard=_shard(),
            number=_big("in its shard; a number is used again once no row has it"),
            group=_text("name of the group; empty: rows without a group"),
            queue=_text("queue, or routing key where the producer named no queue"),
            waiting=_big("rows that wait in it"),
        ),
        _page("Group", "linerow", verbose_name="group", verbose_name_plural="groups"),
        _table(
            "LimitRow",
            "wheel_limit",
            _unique("wheel_limit_place", "shard", "group"),
            id=_number(),
            shard=_shard(),
            group=_text("name of the group"),
            concurrency=_whole("most runs in flight; none: as its class has it", null=True),
            rate_count=_whole("most tasks in rate_per_ms; none: as its class has it", null=True),
            rate_per_ms=_big("duration in milliseconds", null=True),
            weight=_whole("its share beside other groups; none: as its class has it", null=True),
            max_runtime_ms=_big("a run counts as over after it; duration in milliseconds", null=True),
            actor=_text("the person or part that set it"),
            at_ms=_instant(),
        ),
        _table(
            "RateRow",
            "wheel_rate",
            _unique("wheel_rate_place", "shard", "group"),
            id=_number(),
            shard=_shard(),
            group=_text("name of the group"),
            empty_ms=_instant("its rate is as unused from then on"),
        ),
        _table(
            "InboxRow",
            "wheel_inbox",
            _index("wheel_inbox_bulk", "bulk", bulk__isnull=False),
            _index("wheel_inbox_shard", "shard", "id"),
            id=_number(models.BigAutoField),
            shard=_shard(),
            kind=_text("message, messages, or the name of a command"),
            payload=_bytes("the message, some messages packed, or the command's arguments"),
            rows=_whole("messages in it, where they are packed", null=True),
            bulk=_text("the bulk action that a command is about", null=True),
        ),
        _table(
            "LaneRow",
            "wheel_lane",
            _unique("wheel_lane_place", "shard", "lane"),
            id=_number(),
            shard=_shard(),
            lane=_big("number of the lane, from 0"),
            offset_due_ms=_instant("rows up to this position are settled"),
            offset_seq=_big("second half of the offset's position"),
            watermark_due_ms=_instant("rows up to this position may be published"),
            watermark_seq=_big("second half of the watermark's position"),
            target=_text("the destination or gate that it is for; none: for all", null=True),
            redelivered=_flag("its rows may be in their queues already"),
            scope=_text("queue or task, where the target is a gate; none: a destination", null=True),
            closed=_flag("it has no pending rows and gets none"),
        ),
        _table(
            "LoadChunkRow",
            "wheel_load_chunk",
            _index("wheel_load_chunk_shard", "load", "shard", "id"),
            _unique("wheel_load_chunk_place", "load", "part", "number", "shard"),
            id=_number(models.BigAutoField),
            load=_big("id of the load"),
            part=_whole("number of the part, from 0"),
            number=_whole("number of its slice of the part's rows, from 0"),
            shard=_shard(),
            rows=_whole("messages in it"),
            digest=_text("hash of the slice's rows and of the template of their messages"),
            payload=_bytes("the messages, packed"),
        ),
        _table(
            "LoadPartRow",
            "wheel_load_part",
            _unique("wheel_load_part_place", "load", "part"),
            id=_number(),
            load=_big("id of the load"),
            part=_whole("number of the part, from 0"),
            run=_big("run of the load in which it was claimed"),
            attempt=_text("the attempt that may write it; an older attempt may write nothing"),
        ),
        _table(
            "LoadRow",
            "wheel_load",
            _index("wheel_load_state", "state", "id"),
            _unique("wheel_load_name", "name"),
            id=_number(models.BigAutoField),
            name=_text("chosen by the loading process; at most one load of a name is committed"),
            state=_text("open, committed, done (committed and wholly accepted) or aborted"),
            run=_big("raised whenever the load is begun or resumed; an older run may write nothing"),
            created_ms=_instant("time of its first begin"),
            begun_ms=_instant("begin of its last run"),
            ended_ms=_instant("time of the commit or abort", null=True),
            rows=_big("messages in it, once it is committed"),
            origin=_text("as in the audit log; empty while it is open"),
            actor=_text("the person or the process that committed or aborted it; empty while it is open"),
            audited=_flag("the audit log has its end"),
        ),
        _table(
            "OutcomeRow",
            "wheel_outcome",
            _index("wheel_outcome_kind", "shard", "kind", "at_ms"),
            _index("wheel_outcome_timer", "timer_id"),
            id=_given("a seq"),
            shard=_shard(),
            timer_id=_big("id of the timer"),
            kind=_text("cancelled, moved, expired or rejected"),
            reason=_text("reason, for people"),
            actor=_text("user or part that did it"),
            at_ms=_instant(),
        ),
        _page("Rejected", "outcomerow", verbose_name_plural="rejected tasks"),
        _table(
            "RevisionRow",
            "wheel_revision",
            _index("wheel_revision_name", "name", "id"),
            _unique("wheel_revision_number", "schedule", "number"),
            id=_number(),
            schedule=_big("id of the schedule"),
            number=_whole("revision of the schedule that the change made"),
            name=_text("name of the schedule"),
            what=_text("created, changed, paused, resumed, deleted, imported or rolled back"),
            actor=_text("user or part that did it"),
            reason=_text("reason, for people"),
            at_ms=_instant("time of the change"),
            before=_text("JSON object: the schedule before the change; empty: it did not exist"),
        ),
        _table(
            "RouteRow",
            "wheel_route",
            _index("wheel_route_target", "target"),
            _index("wheel_route_task", "task"),
            _unique("wheel_route_digest", "digest"),
            id=_number(models.BigAutoField),
            digest=_bytes("of the other columns; 16 bytes"),
            task=_text("name of the task"),
            exchange=_text("exchange to publish to; empty: the default exchange"),
            exchange_type=_text("direct, topic, fanout, …"),
            routing_key=_text("routing key to publish with"),
            queue=_text("name of the queue, if the producer named one", null=True),
            priority=_whole("AMQP priority", null=True),
            queue_expires_ms=_big("x-expires of the queue; duration in milliseconds", null=True),
            batch=_whole("up to so many calls of a batch are one message", null=True),
            signed=_flag(
                "a key of wheel_signing_keys has signed its messages, which wheel_destinations does not limit"
            ),
            target=_text("queue, or routing key where the producer named no queue"),
        ),
        _table(
            "RunRow",
            "wheel_run",
            _index("wheel_run_instant", "schedule", "instant_ms", "timer_id", schedule__isnull=False),
            _index("wheel_run_open", "shard", "until_ms", "timer_id", ended_ms__isnull=True, group__isnull=False),
            timer_id=_given("id of the timer"),
            shard=_shard(),
            schedule=_big("id of the schedule, if it is of one", null=True),
            instant_ms=_instant("intended time, of a schedule", null=True),
            requested=_flag("triggered or backfilled"),
            group=_text("the group that it counts for", null=True),
            until_ms=_instant("end of its time in the group, whatever is reported", null=True),
            ended_ms=_instant("end that its worker reported", null=True),
        ),
        _table(
            "ScheduleRow",
            "wheel_schedule",
            _index("wheel_schedule_due", "shard", "next_ms", "id"),
            _unique("wheel_schedule_name", "name"),
            id=_given("a seq"),
            shard=_shard(),
            name=_text("unique in the store; its shard is that of its group, or of the name"),
            definition=_text("JSON object: recurrence, task, arguments, options and policies"),
            source=_text("api, or the source that it follows"),
            revision=_whole("1 when it is created; each change adds one"),
            next_ms=_instant("next instant to be made, if any", null=True),
            made=_big("occurrences made so far"),
            last_ms=_instant("last instant that was made", null=True),
            paused=_flag("it has no next instant until it is resumed"),
            note=_text("reason for which it is paused, broken or failing"),
            broken=_flag("it does not run, for the reason in note"),
            since_ms=_instant("later instants have no skip yet", null=True),
        ),
        _page("Schedule", "schedulerow", verbose_name="schedule", verbose_name_plural="schedules"),
        _table(
            "ScheduleSkipRow",
            "wheel_schedule_skip",
            _index("wheel_schedule_skip_age", "shard", "at_ms"),
            _unique("wheel_schedule_skip_first", "schedule", "from_ms"),
            id=_number(),
            shard=_shard(),
            schedule=_big("id of the schedule"),
            from_ms=_instant("first skipped occurrence"),
            to_ms=_instant("last skipped occurrence"),
            count=_big("skipped occurrences; negative: more than so many"),
            reason=_text("paused, overlapped, missed, excluded or gap"),
            at_ms=_instant("time of the decision"),
        ),
        _page("Shard", "shardrow", verbose_name="shard", verbose_name_plural="shards"),
        _page("Wheel", "shardrow", verbose_name="wheel", verbose_name_plural="wheel", permissions=PERMISSIONS),
        _table(
            "TallyRow",
            "wheel_tally",
            _unique("wheel_tally_place", "shard", "route", "hour"),
            id=_number(),
            shard=_shard(),
            hour=_whole("due_ms // 3,600,000; hours since 1970"),
            route=_big("id of the route that has the queue and the task, and nothing else"),
            pending=_big("pending messages"),
        ),
        _page("Forecast", "tallyrow", verbose_name_plural="forecast from archive"),
        _table(
            "TimerRow",
            "wheel_timer",
            _index("wheel_timer_line", "shard", "line", "due_ms", "seq", line__isnull=False),
            _index("wheel_timer_position", "shard", "lane", "due_ms", "seq", "size"),
            _index("wheel_timer_task", "shard", "task_id"),
            _unique("wheel_timer_envelope", "shard", "envelope_id"),
            id=_given("first seq of the row; never changes"),
            lane=_big("number of its lane; -1: it is stopped, -2: it waits for its group"),
            due_ms=_instant("first half of its position"),
            seq=_big("second half of its position; counter << 8 | shard, new with every move"),
            eta_ms=_big("requested by the producer; instant, Unix milliseconds, rounded up"),
            route=_big("id of its task and destination"),
            created_ms=_instant("time of sending, by the producer"),
            accepted_ms=_instant("time of accepting"),
            packing=_big("id of the dictionary by which message is packed; 0: none"),
            line=_big("of a row that waits for its group: number of the line << 9 | rank", null=True),
            expires_ms=_instant("the task's own expires", null=True),
            misfire_ms=_big("it expires when it is found later than this; duration in milliseconds", null=True),
            size=_whole("headers, properties and body together, before they are packed; bytes"),
            shard=_shard(),
            envelope_id=_bytes("makes accepting idempotent; the 16 bytes of a UUID"),
            task_id=_bytes("Celery's task id; the 16 bytes of a UUID, or text after a zero byte"),
            key=_text("tasks with the same key share a shard", null=True),
            group=_text("its group: tasks of a group share a shard and limits", null=True),
            message=_bytes("headers, properties and body, packed and encrypted; an unreadable message's bytes"),
        ),
        _page("History", "timerrow", verbose_name_plural="history"),
        _page("Pending", "timerrow", verbose_name="pending task", verbose_name_plural="pending tasks"),
        _table(
            "TombstoneRow",
            "wheel_tombstone",
            _unique("wheel_tombstone_place", "shard", "task_id"),
            id=_number(),
            shard=_shard(),
            task_id=_text("Celery's task id"),
            until_ms=_instant("removed after this"),
            reason=_text("reason, for people"),
            actor=_text("user or part that did it"),
        ),
        _table(
            "TotalRow",
            "wheel_total",
            _unique("wheel_total_place", "kind", "number", "shard"),
            id=_number(),
            shard=_shard(),
            kind=_text("shard, hour, day or name: a sum of the tally for it; route: rows with it"),
            number=_big("0; of the hour or the day since 1970; of a name and of a route, the route"),
            pending=_big("pending messages; of a route, all rows"),
        ),
        _table(
            "WatchRow",
            "wheel_watch",
            _index("wheel_watch_key", "shard", "kind", "key", "timer_id"),
            _index("wheel_watch_timer", "timer_id"),
            id=_number(),
            shard=_shard(),
            kind=_text(
                "watch: the key completes it; unique: it alone has the key; unannounced: cancelled, to be announced"
            ),
            key=_text("the key, a name chosen by producers"),
            timer_id=_big("id of the timer"),
            latest_ms=_instant("a task that takes its place is due by then", null=True),
            window_ms=_big("the key stays taken after the eta; duration in milliseconds", null=True),
        ),
        migrations.RunPython(set_parameters, migrations.RunPython.noop),
    ]
