"""A schedule as another system has it: its definition here, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_wheel import recurring
from celery_wheel.errors import RecurrenceError, WheelError
from celery_wheel.recurring.definition import to_text
from celery_wheel.values.text import text_rule


class NotImportable(WheelError):
    """A schedule of another system has no counterpart here; the text says why."""


@dataclass(frozen=True, slots=True)
class ForeignSchedule:
    name: str
    definition: dict[str, Any] | None = None
    reason: str = ""  #: the reason of no definition, or a difference from the other system
    paused: bool = False

    @property
    def text(self) -> str:
        """The definition as JSON."""
        return to_text(self.definition)


def refused(name: str, reason: object) -> ForeignSchedule:
    return ForeignSchedule(name, None, str(reason))


def foreign(
    name: str,
    recurrence: recurring.Recurrence,
    task: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    paused: bool = False,
    note: str = "",
    **policies: Any,
) -> ForeignSchedule:
    """Return a schedule with its definition checked; one that is refused here has the reason instead.

    Args:
        options: of ``apply_async``; those that are None are left out.
        note: a difference from the other system.
    """
    parts = {"args": list(args), "kwargs": dict(kwargs or {})}
    parts["options"] = {option: value for option, value in (options or {}).items() if value is not None}
    definition = {"recurrence": recurring.to_json(recurrence), "task": task}
    definition |= {part: value for part, value in parts.items() if value} | policies
    found = ForeignSchedule(name, definition, note, paused)
    if rule := text_rule(name):
        return refused(name, f"its name must be {rule}")
    try:
        found.text  # noqa: B018 - checks it
    except RecurrenceError as error:
        return refused(name, error)
    except (TypeError, ValueError) as error:
        return refused(name, f"its arguments must be values of JSON ({error})")
    return found


def instant_ms(moment: datetime) -> int:
    """Return the instant of an aware datetime."""
    return round(moment.timestamp() * 1_000)
