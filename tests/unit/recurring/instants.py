"""Instants of tests, written as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(text: str) -> int:
    """Return the Unix milliseconds of an ISO text; without an offset it is UTC."""
    at = datetime.fromisoformat(text)
    return (at.replace(tzinfo=at.tzinfo or UTC) - EPOCH) // timedelta(milliseconds=1)


def local_ms(text: str) -> int:
    """Return a wall-clock time as the specs have it: in milliseconds as if the zone were UTC."""
    return ms(text)


def shown(instants: Iterable[int], zone: str = "UTC") -> list[str]:
    """Return instants as a clock in the zone shows them, with the offset."""
    return [f"{(EPOCH + timedelta(milliseconds=at)).astimezone(ZoneInfo(zone)):%m-%d %H:%M%z}" for at in instants]
