"""The columns of a store's tables in Spark, and the store's column behind each of them.

::

    pending   one row a pending message: behind its lane's offset
    history   one row an event: a message was dispatched (outcome ``dispatched``), or it had another outcome

Instants are TIMESTAMP in UTC, exact to the millisecond; ``…_ms`` are the store's own integers. No column holds bytes of
a message: headers and bodies stay in the store.

``queue`` is the queue's name, or the routing key where no queue was named, as in the counts and the admin.
In ``history``, (lane, due_ms, seq) is the position from which a message was dispatched. For any other outcome it is
(-1, instant of the outcome, number of the outcome), which never changes, while the message itself may be dispatched
later. ``batch`` is the number of the settlement that covered the message, ``epoch`` that of the holder.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

PENDING, HISTORY = "pending", "history"

INT, LONG, STRING, INSTANT = IntegerType(), LongType(), StringType(), TimestampType()


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column; ``sql`` is an expression over timer, route, batch and outcome that both databases understand."""

    name: str
    type: DataType
    sql: str
    outcome: str = ""  #: the expression for a row of ``outcome``, where it differs

    @property
    def outcome_sql(self) -> str:
        return self.outcome or self.sql


TARGET = "r.target"

#: A task id as text, in the SQL of each database; ``celery_wheel.store.sql.schema`` has the form of its bytes.
TASK_ID = "TASK_ID"
_TEXT = "substr(t.task_id, CASE WHEN substr(t.task_id, 2, 1) = {zero} THEN 3 ELSE 2 END)"
_POSTGRESQL_TEXT, _SQLITE_TEXT = _TEXT.format(zero=r"'\x00'::bytea"), _TEXT.format(zero="x'00'")
_GROUPS = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
_SQLITE_UUID = " || '-' || ".join(f"lower(substr(hex(t.task_id), {first}, {count}))" for first, count in _GROUPS)
TASK_ID_SQL = {
    "postgresql": "CASE length(t.task_id) WHEN 16 THEN CAST(CAST(encode(t.task_id, 'hex') AS uuid) AS text)"
    f" ELSE convert_from({_POSTGRESQL_TEXT}, 'UTF8') END",
    "sqlite": f"CASE length(t.task_id) WHEN 16 THEN {_SQLITE_UUID} ELSE CAST({_SQLITE_TEXT} AS TEXT) END",
}

_MESSAGE = (
    SourceColumn("id", LONG, "t.id"),
    SourceColumn("task_id", STRING, TASK_ID),
    SourceColumn("task", STRING, "r.task"),
    SourceColumn("queue", STRING, TARGET),
    SourceColumn("key", STRING, "t.key"),
)

_POSITION = (
    SourceColumn("shard", INT, "t.shard", "o.shard"),  # the shard that gave the number: the task may have moved since
    SourceColumn("lane", LONG, "t.lane", "-1"),
    SourceColumn("due_ms", LONG, "t.due_ms", "o.at_ms"),
    SourceColumn("seq", LONG, "t.seq", "o.id"),
)

_ETA = SourceColumn("eta", INSTANT, "t.eta_ms")
_ARRIVAL = (SourceColumn("created", INSTANT, "t.created_ms"), SourceColumn("accepted", INSTANT, "t.accepted_ms"))

COLUMNS: dict[str, tuple[SourceColumn, ...]] = {
    PENDING: (
        *_POSITION,
        *_MESSAGE,
        SourceColumn("priority", INT, "r.priority"),
        _ETA,
        SourceColumn("due", INSTANT, "t.due_ms"),
        SourceColumn("expires", INSTANT, "t.expires_ms"),
        *_ARRIVAL,
        SourceColumn("size", INT, "t.size"),
    ),
    HISTORY: (
        *_POSITION,
        *_MESSAGE,
        _ETA,
        *_ARRIVAL,
        SourceColumn("dispatched", INSTANT, "b.dispatched_ms", "null"),
        SourceColumn("lateness_ms", LONG, "b.dispatched_ms - t.eta_ms", "null"),
        SourceColumn("outcome", STRING, "'dispatched'", "o.kind"),
        SourceColumn("reason", STRING, "null", "o.reason"),
        SourceColumn("at", INSTANT, "b.dispatched_ms", "o.at_ms"),
        SourceColumn("epoch", LONG, "b.epoch", "null"),
        SourceColumn("batch", LONG, "b.id", "null"),
        SourceColumn("size", INT, "t.size"),
    ),
}


def schema(table: str) -> StructType:
    """Return all columns of ``pending`` or ``history``."""
    return StructType([StructField(column.name, column.type) for column in COLUMNS[table]])


PENDING_SCHEMA, HISTORY_SCHEMA = schema(PENDING), schema(HISTORY)
