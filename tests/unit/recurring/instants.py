"""Instants of tests, written as people write them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring import Spec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(text: str) -> int:
    """Return the Unix milliseconds of an ISO text; without an offset it is UTC, or a wall-clock time of a spec."""
    at = datetime.fromisoformat(text)
    return (at.replace(tzinfo=at.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)


def shown(instants: Iterable[int], zone: str = "UTC") -> list[str]:
    """Return instants as a clock in the zone shows them, with the offset."""
    return [f"{(EPOCH + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)):%m-%d %H:%M%z}" for at in instants]


def following(spec: Spec, after: str, count: int) -> list[int]:
    """Return up to ``count`` times of a spec after a time."""
    found: list[int] = []
    at_ms = ms(after)
    while len(found) < count and (next_ms := spec.next_after(at_ms)) is not None:
        found.append(at_ms := next_ms)
    return found


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Expect an error that begins with this message."""
    with pytest.raises(RecurrenceError) as caught:
        yield
    assert str(caught.value).startswith(message)
