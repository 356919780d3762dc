"""The table of the audit log: an entry a request and shard, written with the request's answer.

An entry has no index beside that of its time: people make few requests, and a look for a name reads the log.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, Table, Text

from celery_wheel.store.sql.columns import metadata, optional, required, shard_column, surrogate

audit = Table(
    "wheel_audit",
    metadata,
    surrogate(),
    shard_column(),
    required("request", Text, "chosen by the asker, the same in each shard; UUIDv7"),
    required("at_ms", BigInteger, "time of asking; instant, Unix milliseconds"),
    required("origin", Text, "admin, cli or api"),
    required("actor", Text, "the person"),
    required("action", Text, "cancel, reschedule, pause, schedule_update and others"),
    required("reason", Text, "reason, for people"),
    required("details", Text, "JSON object: arguments of the action"),
    optional("bulk", Text, "the bulk action that it is a part of"),
    required("results", Text, "JSON object: name of a task, schedule, key or gate to its result in the shard"),
    Index("wheel_audit_time", "at_ms", "request"),
)
