"""Chunks of bulk loads: unpack them into messages, those that producers would have put into the wheel queue.

A chunk that cannot be read becomes one unreadable arrival, with its bytes: it must not stop the chunks behind it.

CPU of a message of 820 bytes until it is accepted, 23 µs (SQLite, 100,000 messages with ids in order, busy cores)::

    unpack 1.2   form, messages 4.1   known 1.4   admit 1.7   pack by zstd 2.7   values of the row 1.4   insert 5.3
    read the inbox 1.6   commit 1.1 (5.6 where ids come in no order: each commit writes most pages of two indexes)
"""

from __future__ import annotations

import uuid

from celery_wheel.engine.intake.stored_form import Decode, read_messages
from celery_wheel.store.block import Arrival, each
from celery_wheel.store.message_pack import unpack
from celery_wheel.store.model import BulkLoadChunk, Unreadable


def unpack_chunk(chunk: BulkLoadChunk, decode: Decode) -> list[Arrival]:
    try:
        return unpack_messages(chunk.payload, decode)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"load chunk {chunk.id}"))
        reason = f"{chunk.rows:,} messages of a bulk load (chunk {chunk.id}) cannot be read: {error!r}"
        return [Unreadable(envelope_id, reason, chunk.payload)]


def unpack_messages(payload: bytes, decode: Decode) -> list[Arrival]:
    """Return packed messages in their order. Raises ValueError and its like for bytes that ``pack`` did not make."""
    found = unpack(payload)
    arrivals = [read_messages(kind, decode) for kind in found.kinds]
    return found.in_order(arrivals if found.order is None else map(each, arrivals))
