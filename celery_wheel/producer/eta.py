"""The due time of a delayed task: Celery's ``countdown`` and ``eta`` as one instant, with the text of the eta header.

A naive eta is UTC whatever ``timezone`` and ``enable_utc`` are, because Celery's worker reads it so (measured with 5.7:
``maybe_make_aware`` in ``worker/request.py``, which this module calls too). As in Celery, ``countdown`` takes
precedence over ``eta``, and a countdown of 0 is none. Where Celery would publish an eta that no worker can read, the
call raises here.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601, maybe_make_aware

from celery_wheel.values.instants import us_of, utc_of_us
from celery_wheel.values.text import END_OF_TIME_MS

ACCEPTED = "a datetime, or a text in ISO 8601 like 2030-01-31T09:30:00+01:00, which is UTC without an offset"


class DueTime(NamedTuple):
    """An instant with the text that Celery writes for it into the eta header."""

    text: str
    at_us: int

    @property
    def eta_ms(self) -> int:
        """The instant in milliseconds, rounded up: a task is never early, not even by a microsecond."""
        return -(-self.at_us // 1000)


def due_time(app: Any, now: datetime, countdown: Any, eta: Any) -> DueTime:
    """Return the due time of a call with a countdown or an eta. Raises TypeError or ValueError."""
    if countdown:
        return _checked(_after(now, countdown), "countdown", countdown)
    return _checked(_at(app, eta), "eta", eta)


def due_time_of_header(app: Any, text: Any) -> DueTime:
    """Return the due time in an eta header, as a worker would read it."""
    return _checked(_at(app, text), "eta", text)


def postpone(due: DueTime, by_ms: int) -> DueTime:
    """Return a later due time; its text is in UTC. Raises ValueError beyond the end of time."""
    at_us = due.at_us + by_ms * 1000
    try:
        return _checked(DueTime(utc_of_us(at_us).isoformat(), at_us), "eta", due.text)
    except OverflowError:
        raise _beyond("eta", due.text) from None


def expiry_ms(app: Any, text: Any) -> int | None:
    """Return the instant in an ``expires`` header; None without one, and for one beyond the end of time."""
    if not text:
        return None
    at_ms = us_of(_aware(app, maybe_iso8601(text))) // 1000
    return max(0, at_ms) if at_ms < END_OF_TIME_MS else None


def _after(now: datetime, countdown: Any) -> DueTime:
    if not isinstance(countdown, int | float):
        raise TypeError(f"countdown must be a number of seconds, got {countdown!r}")
    if not math.isfinite(countdown):
        raise ValueError(f"countdown must be finite, got {countdown!r}")
    try:  # by way of UTC: across a change of summer time, seconds are seconds
        moment = (now.astimezone(UTC) + timedelta(seconds=countdown)).astimezone(now.tzinfo)
    except OverflowError:
        raise _beyond("countdown", countdown) from None
    return DueTime(moment.isoformat(), us_of(moment))


def _at(app: Any, eta: Any) -> DueTime:
    if not isinstance(eta, str | date):  # a datetime is a date
        raise TypeError(f"eta must be {ACCEPTED}, got {eta!r}")
    text = eta if isinstance(eta, str) else eta.isoformat()
    try:
        moment = eta if isinstance(eta, datetime) else maybe_iso8601(text)
        return DueTime(str(text), us_of(_aware(app, moment)))
    except ValueError:  # dateutil's words are about its own steps
        raise ValueError(f"eta must be {ACCEPTED}, got {eta!r}") from None


def _aware(app: Any, moment: datetime) -> datetime:
    if moment.utcoffset() is not None:  # made aware in the app's time zone, it would be the same instant
        return moment
    try:
        aware: datetime = maybe_make_aware(moment, app.conf.timezone)
    except OverflowError:  # a naive datetime.max, in a time zone ahead of UTC
        aware = moment.replace(tzinfo=UTC)
    return aware


def _checked(moment: DueTime, name: str, value: Any) -> DueTime:
    if moment.eta_ms >= END_OF_TIME_MS:
        raise _beyond(name, value)
    return moment


def _beyond(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} must be due before the year 9999, got {value!r}")
