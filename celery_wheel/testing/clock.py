"""Virtual time: the time that the test's other code sees, and what the wheel was advanced by.

::

    datetime.now() ────────────┐           as freezegun or time-machine have it, where one of them is active
    moved: the sum of advances ┴─► now     it flows with the real time between two calls …

    advance  │ hold ─► jump to the next due instant ─► its tasks run ─► jump … ─► let go
             └ … and stands still while tasks run: a task that is due at 12:30 finds exactly 12:30

Where a freezer is active, a jump moves the freezer, so ``datetime.now()`` in tasks is the wheel's time. Where none is,
only the wheel and ``app.now()`` are ahead.

Flowing matters: a test that says ``eta=datetime.now() + 30 min`` and then ``advance(minutes=30)`` means that instant,
though some milliseconds have passed in between. For the same reason an advance counts from the next whole millisecond.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_US = timedelta(microseconds=1)


def at(ms: int) -> datetime:
    """An instant in Unix milliseconds, exact where a float would not be."""
    return EPOCH + ms * _MS


def ms_of(moment: datetime) -> int:
    """Rounded up to the millisecond."""
    return -((EPOCH - moment) // _MS)


class VirtualClock:
    """Implements ``timing.Clock``; nobody ever waits on it."""

    def __init__(self) -> None:
        self._moved = timedelta()
        self._held: datetime | None = None
        self._seen = self.now()
        self._monotonic = timedelta()
        self._freezer: Any = None
        self.stood = self._seen  #: when it stood still last; before that there is no going back

    def now(self) -> datetime:
        """In UTC."""
        return self._held or datetime.now(UTC) + self._moved

    def now_ms(self) -> int:
        return (self.now() - EPOCH) // _MS

    def monotonic_ms(self) -> int:
        """Goes on with the time that was seen to pass; a freezer that is set back takes none of it away."""
        now = self.now()
        self._monotonic += max(timedelta(), now - self._seen)
        self._seen = now
        return self._monotonic // _MS

    def wait_until(self, condition: threading.Condition, monotonic_until_ms: int | None) -> None:
        """Returns at once: in virtual time, waiting is the test's affair."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Time stands still, at a whole millisecond, but for jumps."""
        self._held = self.now()
        try:
            self.jump(at(ms_of(self._held)))
            yield
        finally:
            self.stood, self._held = self.now(), None

    def jump(self, to: datetime) -> None:
        """Go forward to an instant; time never goes back."""
        ahead = to - self.now()
        if ahead < _US:
            return
        shift = active_freezer()
        if shift is not None:
            shift(ahead)
        else:
            self._moved += ahead
        if self._held is not None:
            self._held += ahead

    # -- freezing ------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Make ``datetime.now()`` the wheel's time, until ``thaw``. Nothing where a freezer is active already."""
        if active_freezer() is not None:
            return
        self._freezer = freezer = _new_freezer(at(ms_of(self.now())))
        freezer.start()
        self._moved = timedelta()

    def thaw(self) -> None:
        freezer, self._freezer = self._freezer, None
        if freezer is not None:
            freezer.stop()


def active_freezer() -> Callable[[timedelta], object] | None:
    """What moves the time that freezegun or time-machine shows, if one of them is at work."""
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
