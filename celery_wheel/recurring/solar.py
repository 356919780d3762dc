"""Events of the sun at a place, as in ``celery.schedules.solar``, by the package ephem: the extra ``solar``.

An event is computed from a fixed time of its day, never from the instant of the question, by which ephem's answers
differ by milliseconds. The sun is highest up to 17 minutes before or after the mean noon. Instants are whole seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

from celery_wheel.errors import import_extra
from celery_wheel.recurring.checks import check_choice, refuse
from celery_wheel.recurring.specs import Spec
from celery_wheel.values.instants import utc
from celery_wheel.values.text import END_OF_TIME_MS

_DAY_MS = 86_400_000
#: Method → the mean local time from which a day is searched: before the half of the day that has the event.
_STARTS_MS = {"next_rising": -90 * 60_000, "next_setting": 630 * 60_000, "next_transit": 0}
#: Event → (method of an observer, height of the sun, whether its centre counts), as in Celery.
EVENTS: dict[str, tuple[str, str, bool]] = {
    "dawn_astronomical": ("next_rising", "-18", True),
    "dawn_nautical": ("next_rising", "-12", True),
    "dawn_civil": ("next_rising", "-6", True),
    "sunrise": ("next_rising", "-0:34", False),
    "solar_noon": ("next_transit", "0", False),
    "sunset": ("next_setting", "-0:34", False),
    "dusk_civil": ("next_setting", "-6", True),
    "dusk_nautical": ("next_setting", "-12", True),
    "dusk_astronomical": ("next_setting", "-18", True),
}


@dataclass(frozen=True, slots=True)
class Solar(Spec):
    """The instants of an event of EVENTS, at sea level; latitude and longitude in degrees, north and east positive."""

    event: str
    latitude: float
    longitude: float

    def __post_init__(self) -> None:
        check_choice("event", self.event, tuple(EVENTS))
        for name, limit in (("latitude", 90), ("longitude", 180)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not -limit <= value <= limit:
                refuse(name, f"a number of degrees from -{limit} to {limit}", value)
            object.__setattr__(self, name, float(value))
        _ephem()

    def next_after(self, at_ms: int) -> int | None:
        from_ms = _STARTS_MS[EVENTS[self.event][0]] - round(self.longitude / 360 * _DAY_MS)
        day = (at_ms - from_ms) // _DAY_MS
        for search_ms in range(day * _DAY_MS + from_ms, END_OF_TIME_MS, _DAY_MS)[:400]:  # days without an event
            event_ms = _event(self, search_ms)
            if event_ms is not None and event_ms > at_ms:
                return event_ms
        return None


@lru_cache(maxsize=1_024)
def _event(spec: Solar, search_ms: int) -> int | None:
    """Return the event within a day from an instant: no more than one lies there, by the choice of ``_STARTS_MS``."""
    ephem = _ephem()
    method, height, use_center = EVENTS[spec.event]
    place = ephem.Observer()
    place.lat, place.lon, place.elev, place.pressure = str(spec.latitude), str(spec.longitude), 0, 0
    place.horizon = height
    options = {"use_center": True} if use_center else {}
    start = ephem.Date(utc(search_ms).replace(tzinfo=None))
    try:
        event = getattr(place, method)(ephem.Sun(), start=start, **options)
    except ephem.CircumpolarError:
        return None
    event_ms: int = round(event.datetime().replace(tzinfo=UTC).timestamp()) * 1_000
    return event_ms if event_ms < search_ms + _DAY_MS else None


def _ephem() -> Any:
    return import_extra("ephem", "solar", "solar events need")
