"""What the tables of a store look like in Spark, and where in the store each column comes from. Said once, here.

::

    pending   one row a message that waits: behind its lane's offset
    history   one row an event: a message left (outcome ``dispatched``), or something else became of it

Instants are TIMESTAMP, of UTC and to the millisecond; ``…_ms`` are the store's own integers. No column is a message's
bytes: headers and bodies stay in the store.

``queue`` is the queue's name, or the routing key where none was named: as the counts and the admin have it.
In ``history``, (lane, due_ms, seq) is the position from which a message left; of any other outcome it is
(-1, instant of the outcome, number of the outcome), which never changes, while the message itself may leave after all.
``batch`` is the number of the settlement with which it left, ``epoch`` that of the holder.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

PENDING, HISTORY = "pending", "history"

INT, LONG, STRING, INSTANT = IntegerType(), LongType(), StringType(), TimestampType()


@dataclass(frozen=True, slots=True)
class Col:
    """``sql``: an expression over the tables timer, batch and outcome, in what both databases understand."""

    name: str
    type: DataType
    sql: str
    outcome: str = ""  #: where the row is an outcome: the expression, if it is another one

    @property
    def at_outcome(self) -> str:
        return self.outcome or self.sql


TARGET = "coalesce(nullif(t.queue, ''), t.routing_key)"

_MESSAGE = (
    Col("id", LONG, "t.id"),
    Col("task_id", STRING, "t.task_id"),
    Col("task", STRING, "t.task"),
    Col("queue", STRING, TARGET),
    Col("key", STRING, "t.key"),
)

_PLACE = (
    Col("shard", INT, "t.shard", "o.shard"),  # the one that gave the number: the task may have another since
    Col("lane", LONG, "t.lane", "-1"),
    Col("due_ms", LONG, "t.due_ms", "o.at_ms"),
    Col("seq", LONG, "t.seq", "o.id"),
)

_TIMES = (
    Col("eta", INSTANT, "t.eta_ms"),
    Col("created", INSTANT, "t.created_ms"),
    Col("accepted", INSTANT, "t.accepted_ms"),
)

COLUMNS: dict[str, tuple[Col, ...]] = {
    PENDING: (
        *_PLACE,
        *_MESSAGE,
        Col("priority", INT, "t.priority"),
        _TIMES[0],
        Col("due", INSTANT, "t.due_ms"),
        Col("expires", INSTANT, "t.expires_ms"),
        *_TIMES[1:],
        Col("size", INT, "t.size"),
    ),
    HISTORY: (
        *_PLACE,
        *_MESSAGE,
        *_TIMES,
        Col("dispatched", INSTANT, "b.dispatched_ms", "null"),
        Col("lateness_ms", LONG, "b.dispatched_ms - t.eta_ms", "null"),
        Col("outcome", STRING, "'dispatched'", "o.kind"),
        Col("reason", STRING, "null", "o.reason"),
        Col("at", INSTANT, "b.dispatched_ms", "o.at_ms"),
        Col("epoch", LONG, "b.epoch", "null"),
        Col("batch", LONG, "b.id", "null"),
        Col("size", INT, "t.size"),
    ),
}


def schema(table: str) -> StructType:
    """All columns of ``pending`` or ``history``."""
    return StructType([StructField(column.name, column.type) for column in COLUMNS[table]])


PENDING_SCHEMA, HISTORY_SCHEMA = schema(PENDING), schema(HISTORY)
