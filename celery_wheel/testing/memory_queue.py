"""A wheel queue in memory: the bounds of a peek, and the proof of a trim."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from celery_wheel.engine.port import Peeked
from celery_wheel.store.model import Message, Unreadable

Arrivals = Sequence[Message | Unreadable]


def peek_arrivals(arrivals: Arrivals, max_count: int, max_bytes: int) -> Peeked:
    """Return the first messages within the bounds, at least one; the token is the messages themselves."""
    found: list[Message | Unreadable] = []
    weight = 0
    for arrival in arrivals:
        weight += len(arrival.body if isinstance(arrival, Message) else arrival.raw)
        if found and (len(found) >= max_count or weight > max_bytes):
            break
        found.append(arrival)
    return Peeked(found, found, len(found) < len(arrivals))


def is_head(token: Arrivals, arrivals: Arrivals) -> bool:
    """Whether the queue still begins with exactly these messages."""
    head = list(islice(arrivals, len(token)))
    return len(head) == len(token) and all(a is b for a, b in zip(head, token, strict=True))
