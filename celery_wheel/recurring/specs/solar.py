"""Events of the sun at a place, as in ``celery.schedules.solar``, by the package ephem: the extra ``solar``.

::

    midnight of the place          midnight                       midnight
    ───────┼──────── sunrise ──────────┼──────── sunrise ─────────────┼───────►
           │          ▲                │           ▲
           └──────────┘                └───────────┘      searched from the midnight before

An event is computed from the mean midnight before it, never from the instant of the question: ephem's answers for one
event differ by milliseconds, by the instant from which it searches. Instants are whole seconds. On days without the
event, in polar night or polar day, the search goes on; a place without the event for 400 days is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import asin, cos, degrees, radians, sin
from typing import Any

from celery_wheel.errors import PackageMissing
from celery_wheel.recurring.checks import check_choice, refuse
from celery_wheel.recurring.specs.spec import Spec
from celery_wheel.values.text import END_OF_TIME_MS

_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The longest time without an event that is searched.
_MAX_DAYS = 400
#: Degrees by which the sun's height may differ from the estimate of ``_is_possible``.
_MARGIN = 0.8
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
    """The instants of an event, at sea level.

    Args:
        event: a name of EVENTS.
        latitude: degrees, north is positive.
        longitude: degrees, east is positive.
    """

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
        shift_ms = round(self.longitude / 360 * _DAY_MS)
        day = (at_ms + shift_ms) // _DAY_MS
        for midnight_ms in range(day * _DAY_MS - shift_ms, END_OF_TIME_MS, _DAY_MS)[:_MAX_DAYS]:
            for event_ms in _events(self, midnight_ms):
                if event_ms > at_ms:
                    return event_ms
        return None


@lru_cache(maxsize=1_024)
def _events(spec: Solar, midnight_ms: int) -> tuple[int, ...]:
    """Return the events between a midnight of the place and the next. Near midnight there may be two a day, or none."""
    if not _is_possible(spec, midnight_ms):
        return ()
    found: list[int] = []
    search_ms = midnight_ms
    while search_ms < midnight_ms + _DAY_MS // 2:
        event_ms = _search(spec, search_ms)
        if event_ms is None or event_ms >= midnight_ms + _DAY_MS:
            break
        found.append(event_ms)
        search_ms = event_ms + _DAY_MS // 2
    return tuple(found)


def _is_possible(spec: Solar, midnight_ms: int) -> bool:
    """Whether the sun may pass the height on this day: in polar night it spares ephem, which takes 70 µs a day."""
    _, height, _ = EVENTS[spec.event]
    if spec.event == "solar_noon":
        return True
    days = midnight_ms / _DAY_MS - 10_957  # of 2000-01-01
    year = radians(0.98565 * (days + 10)) + radians(1.914) * sin(radians(0.98565 * (days - 2)))
    declination = -degrees(asin(0.39779 * cos(year)))
    highest = 90 - abs(spec.latitude - declination)
    lowest = abs(spec.latitude + declination) - 90
    return lowest - _MARGIN < float(height.replace("-0:34", "-0.57")) < highest + _MARGIN


def _search(spec: Solar, from_ms: int) -> int | None:
    ephem = _ephem()
    method, height, use_center = EVENTS[spec.event]
    place = ephem.Observer()
    place.lat, place.lon, place.elev, place.pressure = str(spec.latitude), str(spec.longitude), 0, 0
    place.horizon = height
    options = {"use_center": True} if use_center else {}
    start = ephem.Date((_EPOCH + timedelta(milliseconds=from_ms)).replace(tzinfo=None))
    try:
        event = getattr(place, method)(ephem.Sun(), start=start, **options)
    except ephem.CircumpolarError:
        return None
    event_s: float = (event.datetime().replace(tzinfo=UTC) - _EPOCH).total_seconds()
    return round(event_s) * 1_000


def _ephem() -> Any:
    try:
        import ephem
    except ImportError as error:
        raise PackageMissing(f"solar events need ephem ({error}); run: pip install 'celery-wheel[solar]'") from error
    return ephem
