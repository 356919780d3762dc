"""Virtual time: the time of the test's other code (freezegun's, where it is active), plus the sum of all advances.

Time flows between two calls: ``eta=datetime.now() + 30 min`` and ``advance(minutes=30)`` mean the same instant, though
some milliseconds pass in between. So an advance counts from the next whole millisecond. Within an advance time stops,
and jumps from due instant to due instant. A jump moves an active freezer: ``datetime.now()`` in tasks is the wheel's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_wheel.values.instants import ceil_ms, ms_of, utc


class VirtualClock:
    """Implements ``timing.Clock``."""

    def __init__(self) -> None:
        self._moved = timedelta()
        self._stopped_at: datetime | None = None
        self._last = self.now()
        self._monotonic = timedelta()
        self._freezer: Any = None
        self.last_stop = self._last  #: the end of the last stop; an advance cannot go back beyond it

    def now(self) -> datetime:
        return self._stopped_at or datetime.now(UTC) + self._moved

    def now_ms(self) -> int:
        return ms_of(self.now())

    def monotonic_ms(self) -> int:
        """Return the sum of the time that has passed; a freezer that is set back does not reduce it."""
        now = self.now()
        self._monotonic += max(timedelta(), now - self._last)
        self._last = now
        return self._monotonic // timedelta(milliseconds=1)

    def seconds_until(self, monotonic_ms: int) -> float:
        """Return 0: only the test lets virtual time pass."""
        return 0.0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop time at a whole millisecond, except for jumps."""
        self._stopped_at = self.now()
        try:
            self.jump(utc(ceil_ms(self._stopped_at)))
            yield
        finally:
            self.last_stop, self._stopped_at = self.now(), None

    def jump(self, to: datetime) -> None:
        """Go forward to an instant; an instant in the past changes nothing."""
        ahead = to - self.now()
        if ahead <= timedelta():
            return
        shift = active_freezer()
        if shift is not None:
            shift(ahead)
        else:
            self._moved += ahead
        if self._stopped_at is not None:
            self._stopped_at += ahead

    def freeze(self) -> None:
        """Make ``datetime.now()`` the wheel's time, until ``thaw``; does nothing where a freezer is active already."""
        if active_freezer() is not None:
            return
        self._freezer = freezer = _new_freezer(utc(ceil_ms(self.now())))
        freezer.start()
        self._moved = timedelta()

    def thaw(self) -> None:
        freezer, self._freezer = self._freezer, None
        if freezer is not None:
            freezer.stop()


def active_freezer() -> Callable[[timedelta], object] | None:
    """Return the function that moves the time of freezegun or time-machine, if one of them is active."""
    freezegun, machine = sys.modules.get("freezegun.api"), sys.modules.get("time_machine")
    for stack, move in (
        (getattr(freezegun, "freeze_factories", ()), "tick"),
        (getattr(machine, "traveller_stack", ()), "shift"),
        (getattr(machine, "coordinates_stack", ()), "shift"),  # its name before time-machine 3
    ):
        if stack:
            found: Callable[[timedelta], object] = getattr(stack[-1], move)
            return found
    return None


def _new_freezer(start: datetime) -> Any:
    try:
        from time_machine import travel
    except ImportError:
        try:
            from freezegun import freeze_time
        except ImportError:
            raise RuntimeError(
                "wheel.freeze() needs time-machine or freezegun; run: pip install time-machine"
            ) from None
        return freeze_time(start)
    return travel(start, tick=False)
