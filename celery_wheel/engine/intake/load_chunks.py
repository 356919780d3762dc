"""Chunks of bulk loads: unpack them into messages, in the form in which producers put them into the wheel queue.

A chunk that cannot be read becomes one unreadable arrival, with its bytes: it must not stop the chunks behind it.
"""

from __future__ import annotations

import uuid

from celery_wheel.engine.intake.inbox import Decode
from celery_wheel.store.message_pack import unpack
from celery_wheel.store.model import BulkLoadChunk, Message, Unreadable


def unpack_chunk(chunk: BulkLoadChunk, decode: Decode) -> list[Message | Unreadable]:
    try:
        messages = unpack(chunk.payload)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"load chunk {chunk.id}"))
        reason = f"{chunk.rows:,} messages of a bulk load (chunk {chunk.id}) cannot be read: {error!r}"
        return [Unreadable(envelope_id, reason, chunk.payload)]
    return [decode(message) for message in messages]
