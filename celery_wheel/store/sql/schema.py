"""The tables, described once for every dialect. Nothing here knows SQLite or PostgreSQL.

docs/schema.md is made of this list, and of the columns' comments::

    wheel_timer              a row for each message, with its packed bytes     id: its first seq
      └ wheel_outcome        outcomes: rejected, cancelled, expired and more   timer_id
    wheel_route              task and destination of very many messages        found by a digest of its values
    wheel_dictionary         common text, by which messages are packed         a few, until no row is
    wheel_lane               the offset and the watermark of a lane            the offsets of the log
    wheel_shard              epoch, holder and lease of a shard                locked first by every write
      └ wheel_snapshot       the holder's last figures                         written each second
    wheel_settlement         a settlement: rows in (from, to] are dispatched   ranges overlap only after a replay
    wheel_tally              pending messages by shard, hour, queue and task   counts without scanning
      └ wheel_total          sums of the tally: by shard, hour, day and name   changed with it, for ``Overview``
                             and rows by route                                 a route without a row is forgotten
    wheel_line               a group's rows that wait for a queue              removed once none waits
    wheel_limit              limits of single groups                           read at adoption
    wheel_rate               groups whose rate was used a moment ago           read at adoption, removed soon
    wheel_scheduler          the last sign of life of a scheduler              the live ones share the shards
    wheel_answer             the results of a command                          read by its sender, removed soon
    wheel_audit              requests and other acts, with their results       read by their time
      └ wheel_audit_chain    the ends of a chain of entries                    locked by each entry
    wheel_tombstone          ids that were cancelled before they came          checked against accepted messages
    wheel_watch              the tasks that claim a key                        found by key, removed with the timer
    wheel_gate               pauses and slow resumes                           read at adoption
    wheel_bulk               a shard's part of an act on all tasks of a filter written by each of its steps
    wheel_inbox              messages and commands for the holder              read by id, deleted once carried out
    wheel_load               bulk loads                                        found by their names
      └ wheel_load_part      the attempt that may write a part of a load       claimed anew by a later attempt
      └ wheel_load_chunk     messages of a part of a load                      deleted once accepted
    wheel_schedule           a definition that recurs, and its next instant    read by (shard, next_ms)
      └ wheel_revision       a change of a schedule                            stays, also after the schedule
      └ wheel_schedule_skip  instants that did not run                         removed with the history
    wheel_run                runs of schedules, and of messages of groups      removed with the timer, and its slot
    wheel_meta               one row: version, UUID, secret, number of shards, brokers

A row of wheel_timer without arguments takes about 300 bytes on SQLite: 150 in the table, 40 in the index of positions,
whose pages are two thirds full, and 30 in each of the others: 720 characters are packed to 60, a route has two bytes in
place of seven columns of names, a UUID has 16. A task id that is no UUID is kept as text after a zero byte, which no
task id has; two zero bytes if one made 16. Equal ids are equal bytes, and no other comparison is made. Its columns of
eight bytes come first, between which PostgreSQL leaves no room: 12 bytes a row.

Each index costs a page written per message, unless new entries come at its end, as those of UUIDv7 do. The range reads,
the guard's count and ``slice_end`` use that of positions alone. No foreign keys, which cost a lookup a row, and no
composite primary keys, which Django cannot map before 5.2. On PostgreSQL an index row has room for 2,704 bytes:
``celery_wheel.values.text`` limits texts to less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

UUID_BYTES, UUID_CHARACTERS = 16, 36

#: A UUID exactly as ``str(UUID(…))`` writes it: any other spelling is another task id.
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_is_uuid, _are_uuids = re.compile(_UUID).fullmatch, re.compile(f"(?:{_UUID})*").fullmatch


def uuid_to_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid.replace("-", ""))


def bytes_to_uuid(found: bytes) -> str:
    return str(UUID(bytes=bytes(found)))


def task_id_to_bytes(task_id: str) -> bytes:
    if _is_uuid(task_id):
        return uuid_to_bytes(task_id)
    text = b"\0" + task_id.encode()
    return text if len(text) != UUID_BYTES else b"\0" + text


def uuids_to_bytes(uuids: Sequence[str]) -> list[bytes]:
    """Return each UUID's bytes: those of all are converted as one text, which takes a tenth of the time."""
    joined = bytes.fromhex("".join(uuids).replace("-", ""))
    return [joined[start : start + UUID_BYTES] for start in range(0, len(joined), UUID_BYTES)]


def task_ids_to_bytes(task_ids: Sequence[str]) -> list[bytes]:
    if set(map(len, task_ids)) == {UUID_CHARACTERS} and _are_uuids("".join(task_ids)):
        return uuids_to_bytes(task_ids)
    return list(map(task_id_to_bytes, task_ids))


def bytes_to_task_id(found: bytes) -> str:
    return bytes_to_uuid(found) if len(found) == UUID_BYTES else bytes(found).lstrip(b"\0").decode()


def digits(uuid: str) -> str:
    """Return the 32 hexadecimal digits of a UUID: the form of a database without a type for UUIDs."""
    return uuid.replace("-", "").lower()


class EnvelopeId(TypeDecorator[str]):
    """A column of envelope ids, for statements that SQLAlchemy executes; prepared ones have the bytes."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else uuid_to_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else bytes_to_uuid(value)


class TaskId(TypeDecorator[str]):
    """A column of task ids, as ``EnvelopeId``."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else task_id_to_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else bytes_to_task_id(value)


metadata = sa.MetaData()

#: SQLite orders a table by its INTEGER PRIMARY KEY, and only exactly this type makes one.
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def seq_id(comment: str) -> sa.Column[int]:
    """Return a primary key with a seq of the holder, so that rows are appended."""
    return sa.Column("id", ID, primary_key=True, autoincrement=False, comment=comment)


def surrogate() -> sa.Column[int]:
    return sa.Column("id", ID, sa.Identity(), primary_key=True, comment="no meaning; Django wants a single key")


def shard_column() -> sa.Column[int]:
    return sa.Column("shard", sa.SmallInteger, nullable=False, comment="number of the shard, from 0")


def table(name: str, *parts: SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(f"wheel_{name}", metadata, *parts, **options)


def sharded(name: str, *parts: SchemaItem, **options: Any) -> sa.Table:
    return table(name, surrogate(), shard_column(), *parts, **options)


def required(name: str, type_: Any, comment: str) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False, comment=comment)


def optional(name: str, type_: Any, comment: str) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=True, comment=comment)


def partial_index(name: str, *columns: str, where: Mapping[str, bool | None]) -> sa.Index:
    """Return an index of some rows; ``where``: column → None: it is null, True: it is not."""
    terms = [f'("{one}" IS {"NOT " if is_set else ""}NULL)' for one, is_set in where.items()]
    condition = sa.text(" AND ".join(terms))
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition, info={"where": where})


audit = table(
    "audit",
    surrogate(),
    required("chain", sa.SmallInteger, "its chain: number of the shard; -1: of acts on the whole store"),
    required("number", sa.BigInteger, "its place in the chain, from 1"),
    required("request", sa.Text, "chosen by the asker, the same in each shard; UUIDv7"),
    required("at_ms", sa.BigInteger, "time of asking; instant, Unix milliseconds"),
    required("origin", sa.Text, "admin, cli, api, program, control, source or unknown"),
    required("actor", sa.Text, "the person, or the process"),
    required("action", sa.Text, "cancel, reschedule, pause, schedule_update and others"),
    required("reason", sa.Text, "reason, for people"),
    required("details", sa.Text, "JSON object: arguments of the action"),
    optional("bulk", sa.Text, "the bulk action that it is a part of"),
    required("results", sa.Text, "JSON object: name of a task, schedule, key or gate to its result in the shard"),
    optional("salt", sa.Text, "of content; none: reason, details and results were erased; hexadecimal"),
    required("content", sa.Text, "SHA-256 of the salt, reason, details and results; hexadecimal"),
    required("digest", sa.Text, "SHA-256 of the digest before, and of all values but those in content; hexadecimal"),
    sa.UniqueConstraint("chain", "number", name="wheel_audit_place"),
    sa.Index("wheel_audit_time", "at_ms", "request"),
    # The requests of people are few among those of programs.
    sa.Index("wheel_audit_origin", "origin", "at_ms", "request"),
)

# Apart from the shard's row: only the commits with an entry of the audit log write it.
audit_chain = table(
    "audit_chain",
    sa.Column("chain", sa.SmallInteger, primary_key=True, autoincrement=False, comment="as in the audit log"),
    required("number", sa.BigInteger, "number of the last entry"),
    required("digest", sa.Text, "digest of the last entry"),
    required("base_number", sa.BigInteger, "number of the last entry that retention has removed; 0: none"),
    required("base_digest", sa.Text, "digest of that entry"),
)


timer = table(
    "timer",
    seq_id("first seq of the row; never changes"),
    required("lane", sa.BigInteger, "number of its lane; -1: it is stopped, -2: it waits for its group"),
    required("due_ms", sa.BigInteger, "first half of its position; instant, Unix milliseconds"),
    required("seq", sa.BigInteger, "second half of its position; counter << 8 | shard, new with every move"),
    required("eta_ms", sa.BigInteger, "requested by the producer; instant, Unix milliseconds, rounded up"),
    required("route", sa.BigInteger, "id of its task and destination"),
    required("created_ms", sa.BigInteger, "time of sending, by the producer; instant, Unix milliseconds"),
    required("accepted_ms", sa.BigInteger, "time of accepting; instant, Unix milliseconds"),
    required("packing", sa.BigInteger, "id of the dictionary by which message is packed; 0: none"),
    optional("line", sa.BigInteger, "of a row that waits for its group: number of the line << 9 | rank"),
    optional("expires_ms", sa.BigInteger, "the task's own expires; instant, Unix milliseconds"),
    optional("misfire_ms", sa.BigInteger, "it expires when it is found later than this; duration in milliseconds"),
    required("size", sa.Integer, "headers, properties and body together, before they are packed; bytes"),
    shard_column(),
    required("envelope_id", EnvelopeId, "makes accepting idempotent; the 16 bytes of a UUID"),
    required("task_id", TaskId, "Celery's task id; the 16 bytes of a UUID, or text after a zero byte"),
    optional("key", sa.Text, "tasks with the same key share a shard"),
    optional("group", sa.Text, "its group: tasks of a group share a shard and limits"),
    required(
        "message", sa.LargeBinary, "headers, properties and body, packed and encrypted; an unreadable message's bytes"
    ),
    sa.Index("wheel_timer_position", "shard", "lane", "due_ms", "seq", "size"),
    sa.UniqueConstraint("shard", "envelope_id", name="wheel_timer_envelope"),
    sa.Index("wheel_timer_task", "shard", "task_id"),
    # Few rows have a line, so the index costs the others nothing.
    partial_index("wheel_timer_line", "shard", "line", "due_ms", "seq", where={"line": True}),
)

route = table(
    "route",
    surrogate(),
    required("digest", sa.LargeBinary, "of the other columns; 16 bytes"),
    required("task", sa.Text, "name of the task"),
    required("exchange", sa.Text, "exchange to publish to; empty: the default exchange"),
    required("exchange_type", sa.Text, "direct, topic, fanout, …"),
    required("routing_key", sa.Text, "routing key to publish with"),
    optional("queue", sa.Text, "name of the queue, if the producer named one"),
    optional("priority", sa.Integer, "AMQP priority"),
    optional("queue_expires_ms", sa.BigInteger, "x-expires of the queue; duration in milliseconds"),
    optional("batch", sa.Integer, "up to so many calls of a batch are one message"),
    required(
        "signed",
        sa.Boolean,
        "a key of wheel_signing_keys has signed its messages, which wheel_destinations does not limit",
    ),
    required("target", sa.Text, "queue, or routing key where the producer named no queue"),
    sa.UniqueConstraint("digest", name="wheel_route_digest"),
    sa.Index("wheel_route_task", "task"),
    sa.Index("wheel_route_target", "target"),
    # No id is used twice: processes keep routes in memory by their ids.
    sqlite_autoincrement=True,
)

dictionary = table(
    "dictionary",
    surrogate(),
    required("made_ms", sa.BigInteger, "instant, Unix milliseconds"),
    required("content", sa.LargeBinary, "a dictionary of zstd; encrypted, if the rows that are packed by it are"),
    required("replaces", sa.Boolean, "rows of earlier dictionaries are packed anew"),
    sqlite_autoincrement=True,
)

lane = sharded(
    "lane",
    required("lane", sa.BigInteger, "number of the lane, from 0"),
    required("offset_due_ms", sa.BigInteger, "rows up to this position are settled; instant, Unix milliseconds"),
    required("offset_seq", sa.BigInteger, "second half of the offset's position"),
    required(
        "watermark_due_ms", sa.BigInteger, "rows up to this position may be published; instant, Unix milliseconds"
    ),
    required("watermark_seq", sa.BigInteger, "second half of the watermark's position"),
    optional("target", sa.Text, "the destination or gate that it is for; none: for all"),
    sa.Column(
        "redelivered", sa.Boolean, nullable=False, default=False, comment="its rows may be in their queues already"
    ),
    optional("scope", sa.Text, "queue or task, where the target is a gate; none: a destination"),
    sa.Column("closed", sa.Boolean, nullable=False, default=False, comment="it has no pending rows and gets none"),
    sa.UniqueConstraint("shard", "lane", name="wheel_lane_place"),
)

shard = table(
    "shard",
    sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False, comment="number of the shard, from 0"),
    required("epoch", sa.BigInteger, "raised whenever the shard is taken; an older epoch may write nothing"),
    optional("holder", sa.Text, "the scheduler that holds the shard; none: it was given up"),
    optional("lease_until_ms", sa.BigInteger, "end of the holder's lease; instant, Unix milliseconds"),
    required("seq", sa.BigInteger, "highest seq taken"),
    required("history_bytes", sa.BigInteger, "sum of the settlements' bytes"),
    required("archived", sa.BigInteger, "an archive has all settlements and outcomes up to this number"),
    required("forgotten", sa.BigInteger, "highest number of the settlements and outcomes that were forgotten"),
    required("packing", sa.BigInteger, "its rows are packed by no earlier dictionary than this"),
    required("accepted", sa.BigInteger, "messages accepted so far, by which a holder finds that the store lost some"),
)

# Apart from the shard's row, which every commit rewrites.
snapshot = table(
    "snapshot",
    sa.Column("shard", sa.SmallInteger, primary_key=True, autoincrement=False, comment="number of the shard, from 0"),
    optional("at_ms", sa.BigInteger, "time of the snapshot; instant, Unix milliseconds"),
    optional("figures", sa.Text, "figures of the holder; JSON object"),
    optional("levels", sa.Text, "levels of the holder's wheel, 60 kB for a thousand buckets; JSON array"),
)

settlement = table(
    "settlement",
    seq_id("a seq"),
    shard_column(),
    required("lane", sa.BigInteger, "number of the lane"),
    required("from_due_ms", sa.BigInteger, "the settlement begins after this position; instant, Unix milliseconds"),
    required("from_seq", sa.BigInteger, "second half of that position"),
    required("to_due_ms", sa.BigInteger, "the settlement ends with this position; instant, Unix milliseconds"),
    required("to_seq", sa.BigInteger, "second half of that position"),
    required("count", sa.Integer, "messages that the broker confirmed"),
    required("bytes", sa.BigInteger, "their size; bytes"),
    required("dispatched_ms", sa.BigInteger, "time of the dispatch; instant, Unix milliseconds"),
    required("epoch", sa.BigInteger, "epoch of the holder that settled them"),
    sa.Index("wheel_settlement_age", "shard", "id"),
    sa.Index("wheel_settlement_dispatched", "shard", "lane", "dispatched_ms"),
    sa.Index("wheel_settlement_range", "shard", "lane", "to_due_ms", "to_seq"),
)

outcome = table(
    "outcome",
    seq_id("a seq"),
    shard_column(),
    required("timer_id", sa.BigInteger, "id of the timer"),
    required("kind", sa.Text, "cancelled, moved, expired or rejected"),
    required("reason", sa.Text, "reason, for people"),
    required("actor", sa.Text, "user or part that did it"),
    required("at_ms", sa.BigInteger, "instant, Unix milliseconds"),
    sa.Index("wheel_outcome_kind", "shard", "kind", "at_ms"),
    sa.Index("wheel_outcome_timer", "timer_id"),
)

tally = sharded(
    "tally",
    required("hour", sa.Integer, "due_ms // 3,600,000; hours since 1970"),
    required("route", sa.BigInteger, "id of the route that has the queue and the task, and nothing else"),
    required("pending", sa.BigInteger, "pending messages"),
    sa.UniqueConstraint("shard", "route", "hour", name="wheel_tally_place"),
)

total = sharded(
    "total",
    required("kind", sa.Text, "shard, hour, day or name: a sum of the tally for it; route: rows with it"),
    required(
        "number",
        sa.BigInteger,
        "0; of the hour or the day since 1970; of a name and of a route, the route",
    ),
    required("pending", sa.BigInteger, "pending messages; of a route, all rows"),
    sa.UniqueConstraint("kind", "number", "shard", name="wheel_total_place"),
)

line = sharded(
    "line",
    required("number", sa.BigInteger, "in its shard; a number is used again once no row has it"),
    required("group", sa.Text, "name of the group; empty: rows without a group"),
    required("queue", sa.Text, "queue, or routing key where the producer named no queue"),
    required("waiting", sa.BigInteger, "rows that wait in it"),
    sa.UniqueConstraint("shard", "number", name="wheel_line_place"),
)

limit = sharded(
    "limit",
    required("group", sa.Text, "name of the group"),
    optional("concurrency", sa.Integer, "most runs in flight; none: as its class has it"),
    optional("rate_count", sa.Integer, "most tasks in rate_per_ms; none: as its class has it"),
    optional("rate_per_ms", sa.BigInteger, "duration in milliseconds"),
    optional("weight", sa.Integer, "its share beside other groups; none: as its class has it"),
    optional("max_runtime_ms", sa.BigInteger, "a run counts as over after it; duration in milliseconds"),
    required("actor", sa.Text, "the person or part that set it"),
    required("at_ms", sa.BigInteger, "instant, Unix milliseconds"),
    sa.UniqueConstraint("shard", "group", name="wheel_limit_place"),
)

rate = sharded(
    "rate",
    required("group", sa.Text, "name of the group"),
    required("empty_ms", sa.BigInteger, "its rate is as unused from then on; instant, Unix milliseconds"),
    sa.UniqueConstraint("shard", "group", name="wheel_rate_place"),
)

inbox = sharded(
    "inbox",
    required("kind", sa.Text, "message, messages, or the name of a command"),
    required("payload", sa.LargeBinary, "the message, some messages packed, or the command's arguments"),
    optional("rows", sa.Integer, "messages in it, where they are packed"),
    optional("bulk", sa.Text, "the bulk action that a command is about"),
    sa.Index("wheel_inbox_shard", "shard", "id"),
    # Commands about bulk actions are few, also where very many messages wait.
    partial_index("wheel_inbox_bulk", "bulk", where={"bulk": True}),
    # No id is used twice: a deleted command must not be taken for a newer one.
    sqlite_autoincrement=True,
)

bulk = sharded(
    "bulk",
    required("action", sa.Text, "id of the bulk action, chosen by the asker; UUIDv7"),
    required("state", sa.Text, "running, stopped, finished or discarded"),
    required("request", sa.Text, "JSON object: the act, its filter, the person, the reason and the time of asking"),
    required("progress", sa.Text, "JSON object: how far the shard has come, and the number of tasks by result"),
    required("changed_ms", sa.BigInteger, "time of the last step or change of the state; instant, Unix milliseconds"),
    optional(
        "stepped_ms",
        sa.BigInteger,
        "the same, while it is running; the earliest has the next step; instant, Unix milliseconds",
    ),
    sa.UniqueConstraint("action", "shard", name="wheel_bulk_place"),
    # Few actions are running.
    partial_index("wheel_bulk_running", "shard", "stepped_ms", where={"stepped_ms": True}),
)

load = table(
    "load",
    surrogate(),
    required("name", sa.Text, "chosen by the loading process; at most one load of a name is committed"),
    required("state", sa.Text, "open, committed, done (committed and wholly accepted) or aborted"),
    required("run", sa.BigInteger, "raised whenever the load is begun or resumed; an older run may write nothing"),
    required("created_ms", sa.BigInteger, "time of its first begin; instant, Unix milliseconds"),
    required("begun_ms", sa.BigInteger, "begin of its last run; instant, Unix milliseconds"),
    optional("ended_ms", sa.BigInteger, "time of the commit or abort; instant, Unix milliseconds"),
    required("rows", sa.BigInteger, "messages in it, once it is committed"),
    required("origin", sa.Text, "as in the audit log; empty while it is open"),
    required("actor", sa.Text, "the person or the process that committed or aborted it; empty while it is open"),
    sa.Column("audited", sa.Boolean, nullable=False, default=False, comment="the audit log has its end"),
    sa.UniqueConstraint("name", name="wheel_load_name"),
    sa.Index("wheel_load_state", "state", "id"),
    sqlite_autoincrement=True,
)

load_part = table(
    "load_part",
    surrogate(),
    required("load", sa.BigInteger, "id of the load"),
    required("part", sa.Integer, "number of the part, from 0"),
    required("run", sa.BigInteger, "run of the load in which it was claimed"),
    required("attempt", sa.Text, "the attempt that may write it; an older attempt may write nothing"),
    sa.UniqueConstraint("load", "part", name="wheel_load_part_place"),
)

load_chunk = table(
    "load_chunk",
    surrogate(),
    required("load", sa.BigInteger, "id of the load"),
    required("part", sa.Integer, "number of the part, from 0"),
    required("number", sa.Integer, "number of its slice of the part's rows, from 0"),
    shard_column(),
    required("rows", sa.Integer, "messages in it"),
    required("digest", sa.Text, "hash of the slice's rows and of the template of their messages"),
    required("payload", sa.LargeBinary, "the messages, packed"),
    sa.UniqueConstraint("load", "part", "number", "shard", name="wheel_load_chunk_place"),
    sa.Index("wheel_load_chunk_shard", "load", "shard", "id"),
    sqlite_autoincrement=True,
)

answer = table(
    "answer",
    sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True, comment="chosen by the sender of the command; UUID"),
    shard_column(),
    required("at_ms", sa.BigInteger, "time of the answer; instant, Unix milliseconds"),
    required("results", sa.Text, "JSON object: task id to done, already, too_late or unknown"),
    sa.Index("wheel_answer_age", "shard", "at_ms"),
)

tombstone = sharded(
    "tombstone",
    required("task_id", sa.Text, "Celery's task id"),
    required("until_ms", sa.BigInteger, "removed after this; instant, Unix milliseconds"),
    required("reason", sa.Text, "reason, for people"),
    required("actor", sa.Text, "user or part that did it"),
    sa.UniqueConstraint("shard", "task_id", name="wheel_tombstone_place"),
)

watch = sharded(
    "watch",
    required(
        "kind",
        sa.Text,
        "watch: the key completes it; unique: it alone has the key; unannounced: cancelled, to be announced",
    ),
    required("key", sa.Text, "the key, a name chosen by producers"),
    required("timer_id", sa.BigInteger, "id of the timer"),
    optional("latest_ms", sa.BigInteger, "a task that takes its place is due by then; instant, Unix milliseconds"),
    optional("window_ms", sa.BigInteger, "the key stays taken after the eta; duration in milliseconds"),
    sa.Index("wheel_watch_key", "shard", "kind", "key", "timer_id"),
    sa.Index("wheel_watch_timer", "timer_id"),
)

gate = sharded(
    "gate",
    required("scope", sa.Text, "all, queue, task or group"),
    required("name", sa.Text, "name of the queue or the task; empty: all"),
    required("state", sa.Text, "paused; or slow: it was resumed, and its backlog is dispatched evenly"),
    required("per_ms", sa.BigInteger, "time in which a slow gate dispatches its backlog; duration in milliseconds"),
    required("reason", sa.Text, "reason, for people"),
    required("actor", sa.Text, "user or part that did it"),
    required("at_ms", sa.BigInteger, "instant, Unix milliseconds"),
    sa.UniqueConstraint("shard", "scope", "name", name="wheel_gate_place"),
)

schedule = table(
    "schedule",
    seq_id("a seq"),
    shard_column(),
    required("name", sa.Text, "unique in the store; its shard is that of its group, or of the name"),
    required("definition", sa.Text, "JSON object: recurrence, task, arguments, options and policies"),
    required("source", sa.Text, "api, or the source that it follows"),
    required("revision", sa.Integer, "1 when it is created; each change adds one"),
    optional("next_ms", sa.BigInteger, "next instant to be made, if any; instant, Unix milliseconds"),
    required("made", sa.BigInteger, "occurrences made so far"),
    optional("last_ms", sa.BigInteger, "last instant that was made; instant, Unix milliseconds"),
    required("paused", sa.Boolean, "it has no next instant until it is resumed"),
    required("note", sa.Text, "reason for which it is paused, broken or failing"),
    required("broken", sa.Boolean, "it does not run, for the reason in note"),
    optional("since_ms", sa.BigInteger, "later instants have no skip yet; instant, Unix milliseconds"),
    sa.UniqueConstraint("name", name="wheel_schedule_name"),
    sa.Index("wheel_schedule_due", "shard", "next_ms", "id"),
)

revision = table(
    "revision",
    surrogate(),
    required("schedule", sa.BigInteger, "id of the schedule"),
    required("number", sa.Integer, "revision of the schedule that the change made"),
    required("name", sa.Text, "name of the schedule"),
    required("what", sa.Text, "created, changed, paused, resumed, deleted, imported or rolled back"),
    required("actor", sa.Text, "user or part that did it"),
    required("reason", sa.Text, "reason, for people"),
    required("at_ms", sa.BigInteger, "time of the change; instant, Unix milliseconds"),
    required("before", sa.Text, "JSON object: the schedule before the change; empty: it did not exist"),
    sa.UniqueConstraint("schedule", "number", name="wheel_revision_number"),
    sa.Index("wheel_revision_name", "name", "id"),
)

run = table(
    "run",
    sa.Column("timer_id", ID, primary_key=True, autoincrement=False, comment="id of the timer"),
    shard_column(),
    optional("schedule", sa.BigInteger, "id of the schedule, if it is of one"),
    optional("instant_ms", sa.BigInteger, "intended time, of a schedule; instant, Unix milliseconds"),
    required("requested", sa.Boolean, "triggered or backfilled"),
    optional("group", sa.Text, "the group that it counts for"),
    optional(
        "until_ms", sa.BigInteger, "end of its time in the group, whatever is reported; instant, Unix milliseconds"
    ),
    optional("ended_ms", sa.BigInteger, "end that its worker reported; instant, Unix milliseconds"),
    partial_index("wheel_run_instant", "schedule", "instant_ms", "timer_id", where={"schedule": True}),
    partial_index("wheel_run_open", "shard", "until_ms", "timer_id", where={"ended_ms": None, "group": True}),
)

schedule_skip = sharded(
    "schedule_skip",
    required("schedule", sa.BigInteger, "id of the schedule"),
    required("from_ms", sa.BigInteger, "first skipped occurrence; instant, Unix milliseconds"),
    required("to_ms", sa.BigInteger, "last skipped occurrence; instant, Unix milliseconds"),
    required("count", sa.BigInteger, "skipped occurrences; negative: more than so many"),
    required("reason", sa.Text, "paused, overlapped, missed, excluded or gap"),
    required("at_ms", sa.BigInteger, "time of the decision; instant, Unix milliseconds"),
    sa.UniqueConstraint("schedule", "from_ms", name="wheel_schedule_skip_first"),
    sa.Index("wheel_schedule_skip_age", "shard", "at_ms"),
)

scheduler = table(
    "scheduler",
    sa.Column("name", sa.Text, primary_key=True, comment="host, a random part, process id"),
    required("seen_ms", sa.BigInteger, "its last sign of life; instant, Unix milliseconds"),
)

meta = table(
    "meta",
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False, comment="always 1"),
    required("schema_version", sa.Integer, "version of this description that the tables follow"),
    required("uuid", sa.Uuid(as_uuid=False), "made with the store; brokers keep it beside the offset"),
    required(
        "secret", sa.Uuid(as_uuid=False), "made with the store, at random; a part of the ids that the store derives"
    ),
    required("shards", sa.SmallInteger, "number of shards of the store"),
    optional("brokers", sa.Text, "places of the broker to which it dispatches, a line each; none: no scheduler ran"),
)
