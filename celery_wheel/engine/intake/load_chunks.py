"""Chunks of bulk loads: unpack them into messages, those that producers would have put into the wheel queue.

A chunk that cannot be read becomes one unreadable arrival, with its bytes: it must not stop the chunks behind it.

CPU of a message of 820 bytes until it is accepted, 15 to 18 µs (SQLite, 50,000 messages, ids in order, busy cores)::

    read the inbox 0.5   unpack 1.3   form 0.6   block 2.0   known 0.5   admit 0.2   pack by zstd 2.6
    values of the row 0.8   insert 5.5 to 6.5   tally, commit and checkpoint 1.6

A message that cannot stay in a block costs 7 µs more.
"""

from __future__ import annotations

from celery_wheel.engine.intake.stored_form import Decode, DerivedId, read_messages
from celery_wheel.store.message_pack import unpack
from celery_wheel.store.model import Arrival, BulkLoadChunk, Unreadable, each


def unpack_chunk(chunk: BulkLoadChunk, decode: Decode, derived_id: DerivedId) -> list[Arrival]:
    try:
        return unpack_messages(chunk.payload, decode)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        envelope_id = derived_id(f"load chunk {chunk.id} {chunk.payload.hex()}")
        reason = f"{chunk.rows:,} messages of a bulk load (chunk {chunk.id}) cannot be read: {error!r}"
        return [Unreadable(envelope_id, reason, chunk.payload)]


def unpack_messages(payload: bytes, decode: Decode) -> list[Arrival]:
    """Return packed messages in their order. Raises ValueError and its like for bytes that ``pack`` did not make."""
    found = unpack(payload)
    arrivals = [read_messages(kind, decode) for kind in found.kinds]
    return found.in_order(arrivals if found.order is None else map(each, arrivals))
