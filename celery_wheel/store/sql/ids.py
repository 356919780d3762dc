"""Envelope ids and task ids as bytes: a UUID takes 16 of them, and 36 as text; each is in the table and in an index.

::

    "0193f2a1-5c1e-7a44-…"  ──►  the 16 bytes of the UUID
    "nightly-2026-11-22"    ──►  b"\\0nightly-2026-11-22"       another task id; two zero bytes if one made 16

A task id has no zero byte (``celery_wheel.values.text``), so each form is read back as it was written. Equal ids are
equal bytes, and no other comparison is made.
"""

from __future__ import annotations

import re
from uuid import UUID

from sqlalchemy import Dialect, LargeBinary
from sqlalchemy.types import TypeDecorator

from celery_wheel.store.model import Message

UUID_BYTES = 16

#: A UUID exactly as ``str(UUID(…))`` writes it: any other spelling is another task id.
_is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch


def uuid_to_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid.replace("-", ""))


def bytes_to_uuid(found: bytes) -> str:
    return str(UUID(bytes=bytes(found)))


def task_id_to_bytes(task_id: str) -> bytes:
    if _is_uuid(task_id):
        return uuid_to_bytes(task_id)
    text = b"\0" + task_id.encode()
    return text if len(text) != UUID_BYTES else b"\0" + text


def ids_to_bytes(message: Message) -> tuple[bytes, bytes]:
    """Return the ids of the envelope and of the task, which are mostly one UUID."""
    envelope_id = uuid_to_bytes(message.envelope_id)
    same = message.task_id == message.envelope_id
    return envelope_id, envelope_id if same else task_id_to_bytes(message.task_id)


def bytes_to_task_id(found: bytes) -> str:
    return bytes_to_uuid(found) if len(found) == UUID_BYTES else bytes(found).lstrip(b"\0").decode()


class EnvelopeId(TypeDecorator[str]):
    """A column of envelope ids, for statements that SQLAlchemy executes; prepared ones have the bytes."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else uuid_to_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else bytes_to_uuid(value)


class TaskId(TypeDecorator[str]):
    """A column of task ids, as ``EnvelopeId``."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else task_id_to_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> str | None:
        return None if value is None else bytes_to_task_id(value)
