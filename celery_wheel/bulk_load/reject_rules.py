"""The rules that reject a row of a bulk load. They need no app, so that rejects can be sorted out first.

Rules that need the app are not here: a task's signature, a route with ``wheel=False``, the app's limit on the size of
messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery_wheel.values.text import END_OF_TIME_MS, group_name_rule, group_rule, text_rule

#: The columns that the rules check; they ignore all others.
COLUMNS = ("task", "args", "kwargs", "eta", "eta_ms", "queue", "key", "group", "priority", "expires", "task_id")


def reason(row: Mapping[str, Any]) -> str | None:
    """Return the reason why a row cannot be scheduled; None for a good row.

    ``eta`` is a datetime or its text in ISO 8601 (UTC without a zone); instead of it, ``eta_ms`` is Unix milliseconds.
    """
    found = _text("task", row.get("task"))
    found = found or _json("args", row.get("args"), list) or _json("kwargs", row.get("kwargs"), dict) or _eta(row)
    found = found or _optional("queue", row.get("queue")) or _priority(row.get("priority"))
    return found or own_reason(row.get("key"), row.get("group"), row.get("task_id"), row.get("expires"))


def own_reason(key: Any, group: Any, task_id: Any, expires: Any) -> str | None:
    """Return the ``reason`` for the values that rows of one task and queue do not share; None is always good."""
    found = _optional("key", key) or _optional("task_id", task_id) or _expires(expires)
    if found is None and group is not None:
        rule = group_name_rule(group)
        found = group_rule(group, key) if rule is None else f"group must be {rule}, got {group!r:.60}"
    return found


def _optional(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _text(name: str, value: Any) -> str | None:
    rule = text_rule(value)
    return None if rule is None else f"{name} must be {rule}, got {value!r:.60}"


def _json(name: str, value: Any, kind: type) -> str | None:
    if value is None:
        return None
    rule = f"{name} must be {'a list' if kind is list else 'an object'} as JSON, got {value!r:.60}"
    try:
        return None if type(json.loads(value)) is kind else rule
    except (ValueError, TypeError, RecursionError) as error:
        return f"{rule} ({error})"


def _eta(row: Mapping[str, Any]) -> str | None:
    eta, eta_ms = row.get("eta"), row.get("eta_ms")
    if (eta is None) == (eta_ms is None):
        return "a row must have either eta or eta_ms"
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return f"eta must be a time, got {row['eta']!r:.60}"
    if isinstance(eta, datetime):
        eta_ms = (eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)).timestamp() * 1_000
    if not isinstance(eta_ms, int | float) or not 0 <= eta_ms < END_OF_TIME_MS:
        return f"eta must be a time from 1970 to the end of 9998, got {row.get('eta', eta_ms)!s:.60}"
    return None


def _priority(value: Any) -> str | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255):
        return None
    return f"priority must be a whole number from 0 to 255, got {value!r:.60}"


def _expires(value: Any) -> str | None:
    if value is None or isinstance(value, datetime):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < END_OF_TIME_MS / 1_000:
        return None
    return f"expires must be a time, or seconds from now, got {value!r:.60}"
