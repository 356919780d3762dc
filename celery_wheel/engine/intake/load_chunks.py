"""Chunks of bulk loads: unpack them into messages, those that producers would have put into the wheel queue.

A chunk that cannot be read becomes one unreadable arrival, with its bytes: it must not stop the chunks behind it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict

from celery_wheel.engine.intake.stored_form import Decode, read_messages
from celery_wheel.store.message_pack import PackTemplate, unpack
from celery_wheel.store.model import BulkLoadChunk, Message, Unreadable


def unpack_chunk(chunk: BulkLoadChunk, decode: Decode) -> list[Message | Unreadable]:
    try:
        return unpack_messages(chunk.payload, decode)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        envelope_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"load chunk {chunk.id}"))
        reason = f"{chunk.rows:,} messages of a bulk load (chunk {chunk.id}) cannot be read: {error!r}"
        return [Unreadable(envelope_id, reason, chunk.payload)]


def unpack_messages(payload: bytes, decode: Decode) -> list[Message | Unreadable]:
    """Return packed messages in their order. Raises ValueError and its like for bytes that ``pack`` did not make."""
    lines = unpack(payload)
    rows: defaultdict[PackTemplate, list[list[str]]] = defaultdict(list)
    for template, values in lines:
        rows[template].append(values)
    found = {template: iter(read_messages(template, of_kind, decode)) for template, of_kind in rows.items()}
    return [next(found[template]) for template, _ in lines]
