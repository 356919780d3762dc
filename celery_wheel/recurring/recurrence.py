"""A recurrence: a spec in a zone, with a rule for gaps and folds, limits, and a calendar of the instants to leave out.

Occurrences are instants from 1970 to the end of 9998, each strictly after the one before. A recurrence that never fires
is refused when it is made. No clock is read: "now" is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Literal

from celery_wheel.errors import RecurrenceError
from celery_wheel.recurring.calendars import Calendar
from celery_wheel.recurring.checks import check_choice, check_type, check_whole, refuse
from celery_wheel.recurring.crontab import Crontab
from celery_wheel.recurring.local import (
    FOLDS,
    GAPS,
    Fold,
    Gap,
    WallClock,
    check_zone,
    next_instant,
    wall_clock,
    zone_of,
)
from celery_wheel.recurring.specs import Interval, Spec
from celery_wheel.values.format import format_utc
from celery_wheel.values.text import END_OF_TIME_MS

#: The most occurrences that a calendar may leave out one by one. A day, or a time of OfSpec, is left out at once.
MAX_EXCLUDED = 10_000


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The instants at which something recurs.

    Args:
        spec: the rule, or the five fields of a crontab as a text.
        zone: an IANA name, an offset like "+02:00", or a tzinfo of such a zone; for specs of wall-clock times, and for
            days of ``without``.
        gap: a wall-clock time that does not exist is moved by the gap's length ("shift"), or does not occur ("skip").
        fold: a wall-clock time that exists twice occurs at the "first" instant, the "second" or "both".
        start_ms, until_ms: the first and the last instant at which it may occur, in Unix milliseconds.
        times: the most occurrences; the caller counts them, see ``next_after``.
        without: the instants at which it does not occur.
    """

    spec: Spec
    zone: str = "UTC"
    gap: Gap = "shift"
    fold: Fold = "first"
    start_ms: int | None = None
    until_ms: int | None = None
    times: int | None = None
    without: Calendar | None = None
    _clock: WallClock = field(init=False, repr=False, compare=False)
    _in_zone: Spec = field(init=False, repr=False, compare=False)
    #: An instant, and the first one of the spec after it: very many schedules that share a crontab ask for it in a row.
    _last: tuple[int, int] = field(default=(0, 0), init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            spec: Spec | str,
            zone: str | tzinfo = "UTC",
            gap: Gap = "shift",
            fold: Fold = "first",
            start_ms: int | None = None,
            until_ms: int | None = None,
            times: int | None = None,
            without: Calendar | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if isinstance(self.spec, str):
            object.__setattr__(self, "spec", Crontab.from_string(self.spec))
        check_type("spec", self.spec, Spec)
        check_choice("gap", self.gap, GAPS)
        check_choice("fold", self.fold, FOLDS)
        for name in ("start_ms", "until_ms"):
            if (value := getattr(self, name)) is not None:
                check_whole(name, value, 0, END_OF_TIME_MS - 1)
        if self.times is not None:
            check_whole("times", self.times, 1)
        if self.without is not None:
            check_type("without", self.without, Calendar)
        object.__setattr__(self, "zone", check_zone("zone", self.zone))
        zone = zone_of(self.zone) or UTC
        object.__setattr__(self, "_clock", wall_clock(zone))
        object.__setattr__(self, "_in_zone", self.spec.in_zone(zone))
        self._check_it_fires()

    @property
    def every_ms(self) -> int | None:
        """The time between any two occurrences that follow each other; None where it differs."""
        return self.spec.every_ms if isinstance(self.spec, Interval) and self.without is None else None

    def next_after(self, at_ms: int, made: int = 0) -> int | None:
        """Return the first occurrence strictly after an instant; None where there is none.

        Args:
            made: the number of occurrences so far, for the limit ``times``.

        Raises RecurrenceError where ``without`` leaves out more than MAX_EXCLUDED occurrences one by one.
        """
        if self.times is not None and made >= self.times:
            return None
        if self.without is None:
            return self._bare_after(at_ms)
        for _ in range(MAX_EXCLUDED):
            found = self._bare_after(at_ms)
            if found is None:
                return None
            excluded, until_ms = self.without.at(found, self._clock)
            if not excluded:
                return found
            at_ms = until_ms - 1
        raise RecurrenceError(
            f"without must leave one of {MAX_EXCLUDED:,} occurrences, got none up to {at_ms} ms; "
            "where OfSpec leaves out a time of many occurrences, give it the duration: lasts_ms"
        )

    def preview(self, at_ms: int, n: int, made: int = 0) -> list[int]:
        """Return the next ``n`` occurrences after an instant, or as many as there are."""
        return list(islice(self._from(at_ms, made), n))

    def between(self, after_ms: int, upto_ms: int, made: int = 0) -> Iterator[int]:
        """Yield the occurrences after one instant, up to and including another."""
        for found in self._from(after_ms, made):
            if found > upto_ms:
                return
            yield found

    def why_not(self, at_ms: int) -> Literal["excluded", "gap"] | None:
        """Return why an instant of the spec does not occur: ``without`` or ``gap`` leaves it out; else None."""
        if self._bare_after(at_ms - 1) == at_ms:
            excluded = self.without is not None and self.without.at(at_ms, self._clock)[0]
            return "excluded" if excluded else None
        if self.gap == "skip" and self._is_within(at_ms) and self._of_spec(at_ms - 1, "shift") == at_ms:
            return "gap"
        return None

    def _from(self, at_ms: int, made: int) -> Iterator[int]:
        found = self.next_after(at_ms, made)
        while found is not None:
            yield found
            made += 1
            found = self.next_after(found, made)

    def _bare_after(self, at_ms: int) -> int | None:
        """Return the first instant of the spec within the limits, also one that ``without`` leaves out."""
        since_ms, found = self._last
        if since_ms <= at_ms < found:
            return found
        first = self._of_spec(max(at_ms, (self.start_ms or 0) - 1), self.gap)
        if first is None or not self._is_within(first):
            return None
        object.__setattr__(self, "_last", (at_ms, first))
        return first

    def _of_spec(self, at_ms: int, gap: Gap) -> int | None:
        if at_ms >= END_OF_TIME_MS:
            return None
        spec = self._in_zone
        if not spec.is_local:
            return spec.next_after(at_ms)
        return next_instant(spec.next_after, self._clock, at_ms, gap, self.fold)

    def _is_within(self, at_ms: int) -> bool:
        return (self.start_ms or 0) <= at_ms < END_OF_TIME_MS and (self.until_ms is None or at_ms <= self.until_ms)

    def _check_it_fires(self) -> None:
        if self.start_ms is not None and self.until_ms is not None and self.until_ms < self.start_ms:
            refuse("until_ms", f"at or after the start ({format_utc(self.start_ms)})", format_utc(self.until_ms))
        if self._bare_after(-1) is None:
            refuse("spec", "a rule with an occurrence from the start on, until the end", self.spec)
        if self.next_after(-1) is None:
            refuse("without", "a calendar that leaves an occurrence", self.without)
