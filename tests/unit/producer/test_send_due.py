"""The due time of a delayed call: countdown and eta in all their forms, and the calls that stay with Celery."""

import math
import zoneinfo
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from freezegun import freeze_time

from celery_wheel import Celery
from tests.unit.producer.memory_broker import Broker, MakeApp

NOW = datetime(2026, 3, 28, 12, 0, 0, 123456, tzinfo=UTC)
END_OF_TIME = datetime.max  # noqa: DTZ901  # people write it for "never"
NAIVE = datetime(2026, 4, 1, 9, 0)  # noqa: DTZ001  # these tests need a naive time
YEAR_2027 = datetime(2027, 1, 1, tzinfo=UTC)
LAST = datetime(9998, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kolkata"]


def ms(moment: datetime) -> int:
    return -(-((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) // 1000)


@pytest.fixture(autouse=True)
def _frozen() -> Any:
    with freeze_time(NOW, ignore=["_pytest"]):
        yield


#: Delays and their instants, in words.
DELAYS: dict[str, tuple[dict[str, Any], datetime]] = {
    **{
        f"a countdown of {seconds} s": ({"countdown": seconds}, NOW + timedelta(seconds=seconds))
        for seconds in (0.2, 1, 30, 86_400 * 365, 10_000_000_000)
    },
    "seconds are seconds across summer time": ({"countdown": 86_400}, NOW + timedelta(days=1)),  # Berlin, 29 March
    "countdown precedes eta": ({"countdown": 5, "eta": YEAR_2027}, NOW + timedelta(seconds=5)),
    "naive, as Celery's worker reads it": ({"eta": NAIVE}, NAIVE.replace(tzinfo=UTC)),
    **{
        f"of {zone}": (
            {"eta": NAIVE.replace(tzinfo=zoneinfo.ZoneInfo(zone))},
            NAIVE.replace(tzinfo=zoneinfo.ZoneInfo(zone)),
        )
        for zone in ZONES
    },
    "text with an offset": ({"eta": "2026-04-01T09:00:00+02:00"}, datetime(2026, 4, 1, 7, tzinfo=UTC)),
    "text in UTC": ({"eta": "2026-04-01T09:00:00Z"}, NAIVE.replace(tzinfo=UTC)),
    "naive text": ({"eta": "2026-04-01T09:00:00"}, NAIVE.replace(tzinfo=UTC)),
    "text of a date": ({"eta": "2026-04-01"}, datetime(2026, 4, 1, tzinfo=UTC)),
    "a date": ({"eta": date(2026, 4, 1)}, datetime(2026, 4, 1, tzinfo=UTC)),
    "an offset of seconds": (
        {"eta": datetime(2026, 4, 1, tzinfo=timezone(timedelta(seconds=3208)))},
        datetime(2026, 3, 31, 23, 6, 32, tzinfo=UTC),
    ),
    "microseconds are rounded up": (
        {"eta": datetime(2026, 4, 1, microsecond=1, tzinfo=UTC)},
        datetime(2026, 4, 1, microsecond=1_000, tzinfo=UTC),
    ),
    "the last instant": ({"eta": LAST}, LAST),
}


@pytest.mark.slow
@pytest.mark.parametrize("zone", [*ZONES, None])
@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("delay", DELAYS)
def test_a_delay_is_due_at_the_same_instant_in_any_time_zone(
    make_app: MakeApp, broker: Broker, zone: str | None, enable_utc: bool, delay: str
) -> None:
    options, due = DELAYS[delay]
    make_app(timezone=zone, enable_utc=enable_utc).send_task("proj.add", (1, 2), **options)
    message = broker.one_waiting()
    assert message.eta_ms == ms(due)
    assert message.created_ms == ms(NOW) - 1  # rounded down


@pytest.mark.parametrize("delay", [{"countdown": 0}, {"countdown": 0.0}, {"countdown": None}, {"eta": None}, {}])
def test_a_call_without_a_delay_stays_with_celery(add: Any, broker: Broker, delay: dict[str, Any]) -> None:
    add.apply_async((1, 2), **delay)
    headers = broker.one_sent()["headers"]
    assert headers["eta"] is None
    assert "wheel" not in headers


@pytest.mark.parametrize(
    ("delay", "eta"),
    [
        ({"countdown": -5}, NOW - timedelta(seconds=5)),
        ({"countdown": -1, "eta": YEAR_2027}, NOW - timedelta(seconds=1)),  # as in Celery, countdown precedes
        ({"eta": NOW - timedelta(microseconds=1)}, NOW - timedelta(microseconds=1)),
        ({"eta": NOW}, NOW),
        ({"eta": "1969-01-01T00:00:00+00:00"}, datetime(1969, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_past_eta_goes_to_the_task_queue_with_its_eta(
    add: Any, broker: Broker, delay: dict[str, Any], eta: datetime
) -> None:
    add.apply_async((1, 2), **delay)
    headers = broker.one_sent()["headers"]
    assert headers["eta"] == eta.isoformat()
    assert "wheel" not in headers


def test_a_delay_below_the_minimum_stays_with_celery(make_app: MakeApp, broker: Broker) -> None:
    add = make_app(wheel_min_delay=2).tasks["proj.add"]
    add.apply_async((1, 2), countdown=1.999)
    assert broker.one_sent()["headers"]["eta"] == (NOW + timedelta(seconds=1.999)).isoformat()
    add.apply_async((1, 2), countdown=2)
    assert broker.one_waiting().eta_ms == ms(NOW + timedelta(seconds=2))


@pytest.mark.parametrize(
    ("delay", "error", "says"),
    [
        ({"countdown": math.nan}, ValueError, "countdown must be finite, got nan"),
        ({"countdown": math.inf}, ValueError, "countdown must be finite, got inf"),
        ({"countdown": "5"}, TypeError, "countdown must be a number of seconds, got '5'"),
        ({"countdown": timedelta(seconds=5)}, TypeError, "countdown must be a number of seconds"),
        ({"countdown": 1e12}, ValueError, "countdown must be due before the year 9999"),
        ({"countdown": 252_000_000_000}, ValueError, "countdown must be due before the year 9999"),
        ({"eta": datetime(9999, 1, 1, tzinfo=UTC)}, ValueError, "eta must be due before the year 9999"),
        ({"eta": END_OF_TIME}, ValueError, "eta must be due before the year 9999"),
        ({"eta": 5}, TypeError, "eta must be a datetime, or a text in ISO 8601 like 2030-.*, got 5$"),
        ({"eta": "tomorrow"}, ValueError, "eta must be a datetime, or a text in ISO 8601 .*, got 'tomorrow'$"),
        ({"eta": "10:00"}, ValueError, "eta must be a datetime, or a text in ISO 8601 .*, got '10:00'$"),
        ({"eta": "2030-13-45"}, ValueError, "eta must be a datetime, or a text in ISO 8601 .*, got '2030-13-45'$"),
    ],
)
def test_an_invalid_delay_is_refused_at_the_call(
    make_app: MakeApp, broker: Broker, delay: dict[str, Any], error: type[Exception], says: str
) -> None:
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        with pytest.raises(error, match=says):
            make_app(timezone=zone).tasks["proj.add"].apply_async((1, 2), **delay)
    assert not broker.waiting()
    assert not broker.sent()


@pytest.mark.parametrize("delay", [{"countdown": 30}, {"eta": NAIVE}, {"eta": "2026-04-01T00:00:00"}])
@pytest.mark.parametrize("zone", ZONES)
def test_a_pending_message_has_its_eta_as_celery_writes_it(
    make_app: MakeApp, broker: Broker, delay: dict[str, Any], zone: str
) -> None:
    import celery

    make_app(celery.Celery, timezone=zone).send_task("proj.add", (1, 2), task_id="t", **delay)
    native = broker.one_sent()["headers"]
    make_app(Celery, timezone=zone).send_task("proj.add", (1, 2), task_id="t", **delay)
    (raw,) = broker.raw("wheel.0")
    assert f'"eta": "{native["eta"]}"'.encode() in raw
