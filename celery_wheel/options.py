"""``apply_async(…, wheel=…)``: what a single call may ask of the wheel.

``None`` or ``True`` asks for nothing, ``False`` leaves the delay to Celery itself, a dict sets options:

    key    tasks that share a key share a shard, and so leave in order even where there are several shards

Anything else raises at the call. A route in ``task_routes`` may carry ``wheel`` as well; a key that the call names
comes first.

Under ``task_always_eager`` nothing is sent and so nothing is looked at here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_wheel.broker.envelope import MAX_TEXT

KNOWN = ("key",)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """``native``: Celery itself is to hold this message."""

    native: bool = False
    key: str | None = None


_PLAIN = CallOptions()
_NATIVE = CallOptions(native=True)


def parse(wheel: Any) -> CallOptions:
    """Raises TypeError for what is not known, ValueError for what makes no sense."""
    if wheel is None or wheel is True:
        return _PLAIN
    if wheel is False:
        return _NATIVE
    if not isinstance(wheel, Mapping):
        raise TypeError(f"wheel must be True, False or a dict of options, got {wheel!r}")
    unknown = [option for option in wheel if option not in KNOWN]
    if unknown:
        raise TypeError(f"wheel options must be among {', '.join(KNOWN)}, got {', '.join(map(repr, unknown))}")
    key = wheel.get("key")
    if key is not None and not isinstance(key, str):
        raise TypeError(f"wheel option key must be a text, got {key!r}")
    if key is not None and not 0 < len(key) <= MAX_TEXT:
        raise ValueError(f"wheel option key must be a text of 1 to {MAX_TEXT} characters, got one of {len(key)}")
    return CallOptions(key=key)
