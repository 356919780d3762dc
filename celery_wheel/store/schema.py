"""The tables, described once for every dialect. Nothing here knows SQLite or PostgreSQL.

::

    wheel_timer    one row a message; hot and narrow (about 250 bytes)      id = first seq it was given
      └ wheel_payload   its bytes, written once, never updated              id = timer's id
      └ wheel_outcome   what became of it, if it did not simply leave       timer_id
    wheel_lane     shard, lane → offset and watermark                               the offset of the log
    wheel_shard    epoch, holder, lease; the holder's snapshot              locked first by every write
    wheel_batch    one row a settlement: (from, to] left at dispatched_ms   ranges overlap only after a replay
    wheel_tally    shard, hour, queue, task → pending                       counts without scanning
    wheel_scheduler  name → when it was last heard of                       shards are shared among those
    wheel_answer   what became of a command                                 read by who asked, gone after minutes
    wheel_tombstone  task ids that were cancelled before they came          held against whatever is accepted
    wheel_watch    key → tasks that wait for it, or are the only one of it  (kind, key) finds them; gone with the timer
    wheel_gate     what is paused, or leaves slowly                         read at adoption
    wheel_inbox    what others wrote for the holder                         read by id, deleted when taken in
    wheel_meta     one row: version of this description, the store's UUID, how many shards

    lane of a timer:  >= 0 leaves when its position is reached     REST (-1) stays until it is forgotten

Three indexes on wheel_timer, and why no more: every one costs a page written per message, unless new entries
come at its end. Two do, because their ids are UUIDv7. The third cannot, the due times being anything:

    position    (shard, lane, due_ms, seq, size)    range reads, the guard's count and ``reach`` never see the table
    envelope    (shard, envelope_id), unique        accepting is idempotent
    task        (shard, task_id)                    cancel and show

Bytes in a table of their own, against one table for all: 1.7 instead of 2.2 GB a million messages of 1.2 kB (two of
them hardly fill a page of 4 kB), 17 % less work to accept, and a move or a summary touches no payload. It costs a
third of the rate of ``slice`` (125,000 instead of 160,000 rows/s warm), of which there is enough.

No foreign keys and no composite primary keys: the first cost a lookup a row for what the holder alone writes
in order, the second Django cannot map before 5.2.

Text has no length limit here: what may come in is the broker edge's to decide. On PostgreSQL an index row has room for
2,704 bytes, so task_id must stay below that, and queue (or routing_key) and task together.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
)

metadata = MetaData()

#: SQLite keeps a table in the order of an INTEGER PRIMARY KEY, and only that very word makes one.
_ID = BigInteger().with_variant(Integer(), "sqlite")


def _given(comment: str) -> Column[int]:
    """A primary key whose value the holder gives: a seq, so that rows are appended."""
    return Column("id", _ID, primary_key=True, autoincrement=False, comment=comment)


def _surrogate() -> Column[int]:
    return Column("id", _ID, Identity(), primary_key=True, comment="no meaning; Django wants a single key")


def _shard() -> Column[int]:
    return Column("shard", SmallInteger, nullable=False, comment="number of the shard, from 0")


def _required(name: str, type_: Any, comment: str) -> Column[Any]:
    return Column(name, type_, nullable=False, comment=comment)


def _optional(name: str, type_: Any, comment: str) -> Column[Any]:
    return Column(name, type_, nullable=True, comment=comment)


timer = Table(
    "wheel_timer",
    metadata,
    _given("first seq the row was given; never changes"),
    _shard(),
    _required("lane", BigInteger, "number of its lane; -1: it rests"),
    _required("due_ms", BigInteger, "first half of its position; instant, Unix milliseconds"),
    _required("seq", BigInteger, "second half of its position; counter << 8 | shard, new with every move"),
    _required("eta_ms", BigInteger, "when the producer asked for it; instant, Unix milliseconds, rounded up"),
    _required("envelope_id", Uuid(as_uuid=False), "what makes accepting idempotent; UUID"),
    _required("task_id", Text, "Celery's task id"),
    _required("task", Text, "name of the task"),
    _required("exchange", Text, "exchange to publish to; empty: the default exchange"),
    _required("exchange_type", Text, "direct, topic, fanout, …"),
    _required("routing_key", Text, "routing key to publish with"),
    _optional("queue", Text, "name of the queue, if the producer named one"),
    _optional("priority", Integer, "AMQP priority"),
    _optional("key", Text, "tasks with the same key share a shard"),
    _optional("expires_ms", BigInteger, "the task's own expires; instant, Unix milliseconds"),
    _optional("queue_expires_ms", BigInteger, "x-expires of the queue; duration in milliseconds"),
    _required("created_ms", BigInteger, "when the producer sent it; instant, Unix milliseconds"),
    _required("accepted_ms", BigInteger, "when it was accepted; instant, Unix milliseconds"),
    _required("size", Integer, "headers, properties and body together; bytes"),
    _optional("misfire_ms", BigInteger, "found later than this it is set aside; duration in milliseconds"),
    Index("wheel_timer_position", "shard", "lane", "due_ms", "seq", "size"),
    UniqueConstraint("shard", "envelope_id", name="wheel_timer_envelope"),
    Index("wheel_timer_task", "shard", "task_id"),
)

payload = Table(
    "wheel_payload",
    metadata,
    _given("id of the timer"),
    _required("headers", LargeBinary, "JSON object, UTF-8"),
    _required("properties", LargeBinary, "JSON object, UTF-8"),
    _required("body", LargeBinary, "serialised body as it came; of a rejected message all its bytes"),
)

lane = Table(
    "wheel_lane",
    metadata,
    _surrogate(),
    _shard(),
    _required("lane", BigInteger, "number of the lane, from 0"),
    _required("offset_due_ms", BigInteger, "all up to this position is settled; instant, Unix milliseconds"),
    _required("offset_seq", BigInteger, "second half of the offset's position"),
    _required("watermark_due_ms", BigInteger, "up to here handed to the broker; instant, Unix milliseconds"),
    _required("watermark_seq", BigInteger, "second half of the watermark's position"),
    _optional("target", Text, "the one destination it is for, while that does not take everything; none: for all"),
    Column("redelivered", Boolean, nullable=False, default=False, comment="its rows may be in their queue already"),
    _optional("scope", Text, "queue or task, where the target is that of a gate; none: of a destination"),
    Column("closed", Boolean, nullable=False, default=False, comment="nothing is pending in it, and nothing comes"),
    UniqueConstraint("shard", "lane", name="wheel_lane_place"),
)

shard = Table(
    "wheel_shard",
    metadata,
    Column("shard", SmallInteger, primary_key=True, autoincrement=False, comment="number of the shard, from 0"),
    _required("epoch", BigInteger, "raised whenever the shard is taken; an older one may write nothing"),
    _optional("holder", Text, "who holds the shard; none: nobody does"),
    _optional("lease_until_ms", BigInteger, "the holder's claim ends; instant, Unix milliseconds"),
    _required("seq", BigInteger, "highest seq given"),
    _required("history_bytes", BigInteger, "sum of the batches' bytes, kept so that none has to be read for it"),
    _optional("snapshot_at_ms", BigInteger, "age of the snapshot; instant, Unix milliseconds"),
    # It is long, and what stands before it is read and written far more often than what stands behind.
    _optional("snapshot", Text, "what the holder says of itself; JSON object"),
    _required("archived", BigInteger, "an archive has all settlements and outcomes up to this number"),
    _required("forgotten", BigInteger, "highest number of the settlements and outcomes that were forgotten"),
)

#: Of a shard in which nothing has happened.
NO_HISTORY = {"history_bytes": 0, "archived": 0, "forgotten": 0}

batch = Table(
    "wheel_batch",
    metadata,
    _given("a seq"),
    _shard(),
    _required("lane", BigInteger, "number of the lane"),
    _required("from_due_ms", BigInteger, "the batch begins after this position; instant, Unix milliseconds"),
    _required("from_seq", BigInteger, "second half of that position"),
    _required("to_due_ms", BigInteger, "the batch ends with this position; instant, Unix milliseconds"),
    _required("to_seq", BigInteger, "second half of that position"),
    _required("count", Integer, "messages that the broker took"),
    _required("bytes", BigInteger, "their size; bytes"),
    _required("dispatched_ms", BigInteger, "when they were handed over; instant, Unix milliseconds"),
    _required("epoch", BigInteger, "epoch of the holder that settled them"),
    Index("wheel_batch_age", "shard", "id"),
    Index("wheel_batch_dispatched", "shard", "lane", "dispatched_ms"),
    Index("wheel_batch_range", "shard", "lane", "to_due_ms", "to_seq"),
)

outcome = Table(
    "wheel_outcome",
    metadata,
    _given("a seq"),
    _shard(),
    _required("timer_id", BigInteger, "id of the timer"),
    _required("kind", Text, "cancelled, moved, expired, rejected or parked"),
    _required("reason", Text, "why, for people"),
    _required("actor", Text, "who did it"),
    _required("at_ms", BigInteger, "when; instant, Unix milliseconds"),
    Index("wheel_outcome_kind", "shard", "kind", "at_ms"),
    Index("wheel_outcome_timer", "timer_id"),
)

tally = Table(
    "wheel_tally",
    metadata,
    _surrogate(),
    _shard(),
    _required("hour", Integer, "due_ms // 3,600,000; hours since 1970"),
    _required("queue", Text, "queue, or routing key where none was named"),
    _required("task", Text, "name of the task"),
    _required("pending", BigInteger, "messages waiting"),
    UniqueConstraint("shard", "hour", "queue", "task", name="wheel_tally_place"),
)

inbox = Table(
    "wheel_inbox",
    metadata,
    _surrogate(),
    _shard(),
    _required("kind", Text, "message, or the name of a command"),
    _required("payload", LargeBinary, "the message or the command's arguments"),
    Index("wheel_inbox_shard", "shard", "id"),
    # Ids are never used again: a command that was taken in must not be taken for a newer one.
    sqlite_autoincrement=True,
)

load = Table(
    "wheel_load",
    metadata,
    _surrogate(),
    _required("name", Text, "given by who loads; of one name at most one load is committed"),
    _required("state", Text, "open, committed, done (committed, and all of it taken in) or aborted"),
    _required("run", BigInteger, "raised whenever the load is begun or resumed; an older one may write nothing"),
    _required("created_ms", BigInteger, "when it was first begun; instant, Unix milliseconds"),
    _required("begun_ms", BigInteger, "when its last run began; instant, Unix milliseconds"),
    _optional("ended_ms", BigInteger, "when it was committed or aborted; instant, Unix milliseconds"),
    _required("rows", BigInteger, "messages in it, once it is committed"),
    UniqueConstraint("name", name="wheel_load_name"),
    Index("wheel_load_state", "state", "id"),
    # Parts and chunks are found by it.
    sqlite_autoincrement=True,
)

load_part = Table(
    "wheel_load_part",
    metadata,
    _surrogate(),
    _required("load", BigInteger, "id of the load"),
    _required("part", Integer, "number of the part, from 0"),
    _required("run", BigInteger, "run of the load in which it was claimed"),
    _required("attempt", Text, "who may write it: made anew by each attempt, and an older one may write nothing"),
    UniqueConstraint("load", "part", name="wheel_load_part_place"),
)

load_chunk = Table(
    "wheel_load_chunk",
    metadata,
    _surrogate(),
    _required("load", BigInteger, "id of the load"),
    _required("part", Integer, "number of the part, from 0"),
    _required("number", Integer, "number of the slice of the part's rows that it is of, from 0"),
    _shard(),
    _required("rows", Integer, "messages in it"),
    _required("digest", Text, "of the slice's rows and of what made messages of them"),
    _required("payload", LargeBinary, "the messages, packed"),
    UniqueConstraint("load", "part", "number", "shard", name="wheel_load_chunk_place"),
    Index("wheel_load_chunk_shard", "load", "shard", "id"),
    # As those of the inbox: what was taken in must not be taken for something newer.
    sqlite_autoincrement=True,
)

answer = Table(
    "wheel_answer",
    metadata,
    Column("id", Uuid(as_uuid=False), primary_key=True, comment="given to the command by who asked; UUID"),
    _shard(),
    _required("at_ms", BigInteger, "when it was answered; instant, Unix milliseconds"),
    _required("verdicts", Text, "JSON object: task id to done, already, too_late or unknown"),
    Index("wheel_answer_age", "shard", "at_ms"),
)

tombstone = Table(
    "wheel_tombstone",
    metadata,
    _surrogate(),
    _shard(),
    _required("task_id", Text, "Celery's task id"),
    _required("until_ms", BigInteger, "forgotten after this; instant, Unix milliseconds"),
    _required("reason", Text, "why, for people"),
    _required("actor", Text, "who did it"),
    UniqueConstraint("shard", "task_id", name="wheel_tombstone_place"),
)

watch = Table(
    "wheel_watch",
    metadata,
    _surrogate(),
    _shard(),
    _required(
        "kind", Text, "watch: completed with the key; unique: alone with it; unannounced: cancelled, nobody told"
    ),
    _required("key", Text, "what is watched, a name of the producers' own"),
    _required("timer_id", BigInteger, "id of the timer"),
    Index("wheel_watch_key", "shard", "kind", "key", "timer_id"),
    Index("wheel_watch_timer", "timer_id"),
)

gate = Table(
    "wheel_gate",
    metadata,
    _surrogate(),
    _shard(),
    _required("scope", Text, "all, queue or task"),
    _required("name", Text, "of the queue or the task; empty: of all"),
    _required("state", Text, "paused; or slow: it was resumed, and what had gathered leaves evenly"),
    _required("per_ms", BigInteger, "in which what had gathered leaves, of a slow one; duration in milliseconds"),
    _required("reason", Text, "why, for people"),
    _required("actor", Text, "who did it"),
    _required("at_ms", BigInteger, "when; instant, Unix milliseconds"),
    UniqueConstraint("shard", "scope", "name", name="wheel_gate_place"),
)

scheduler = Table(
    "wheel_scheduler",
    metadata,
    Column("name", Text, primary_key=True, comment="host, a random part, process id"),
    _required("seen_ms", BigInteger, "when it was last heard of; instant, Unix milliseconds"),
)

meta = Table(
    "wheel_meta",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False, comment="always 1"),
    _required("schema_version", Integer, "version of this description that the tables follow"),
    _required("uuid", Uuid(as_uuid=False), "made with the store; brokers remember it beside the offset"),
    _required("shards", SmallInteger, "how many shards the store has"),
)
