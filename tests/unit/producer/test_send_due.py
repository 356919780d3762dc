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
ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin", "Asia/Kolkata"]


def ms(moment: datetime) -> int:
    return -(-((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) // 1000)


@pytest.fixture(autouse=True)
def _frozen() -> Any:
    with freeze_time(NOW, ignore=["_pytest"]):
        yield


@pytest.mark.parametrize("zone", [*ZONES, None])
@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("countdown", [0.2, 1, 30, 86_400 * 365, 10_000_000_000])
def test_a_countdown_counts_from_now_in_any_time_zone(
    make_app: MakeApp, broker: Broker, zone: str | None, enable_utc: bool, countdown: float
) -> None:
    app = make_app(timezone=zone, enable_utc=enable_utc)
    app.tasks["proj.add"].apply_async((1, 2), countdown=countdown)
    message = broker.one_waiting()
    assert message.eta_ms == ms(NOW + timedelta(seconds=countdown))
    assert message.created_ms == ms(NOW) - 1  # rounded down


def test_across_a_change_of_summer_time_seconds_are_seconds(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(timezone="Europe/Berlin")  # clocks go forward on 29 March 2026
    app.tasks["proj.add"].apply_async((1, 2), countdown=86_400)
    assert broker.one_waiting().eta_ms == ms(NOW + timedelta(days=1))


@pytest.mark.parametrize("zone", [*ZONES, None])
@pytest.mark.parametrize("enable_utc", [True, False])
def test_a_naive_eta_is_utc_as_celerys_worker_reads_it(
    make_app: MakeApp, broker: Broker, zone: str | None, enable_utc: bool
) -> None:
    app = make_app(timezone=zone, enable_utc=enable_utc)
    app.tasks["proj.add"].apply_async((1, 2), eta=NAIVE)
    assert broker.one_waiting().eta_ms == ms(datetime(2026, 4, 1, 9, 0, tzinfo=UTC))


@pytest.mark.parametrize("zone", ZONES)
def test_an_aware_eta_is_its_own_instant(make_app: MakeApp, broker: Broker, zone: str) -> None:
    eta = datetime(2026, 4, 1, 9, 0, tzinfo=zoneinfo.ZoneInfo(zone))
    make_app(timezone="Asia/Tokyo").tasks["proj.add"].apply_async((1, 2), eta=eta)
    assert broker.one_waiting().eta_ms == ms(eta)


@pytest.mark.parametrize(
    ("eta", "instant"),
    [
        ("2026-04-01T09:00:00+02:00", datetime(2026, 4, 1, 7, 0, tzinfo=UTC)),
        ("2026-04-01T09:00:00Z", datetime(2026, 4, 1, 9, 0, tzinfo=UTC)),
        ("2026-04-01T09:00:00", datetime(2026, 4, 1, 9, 0, tzinfo=UTC)),
        ("2026-04-01", datetime(2026, 4, 1, tzinfo=UTC)),
        (date(2026, 4, 1), datetime(2026, 4, 1, tzinfo=UTC)),
        (datetime(2026, 4, 1, tzinfo=timezone(timedelta(seconds=3208))), datetime(2026, 3, 31, 23, 6, 32, tzinfo=UTC)),
    ],
)
def test_an_eta_may_be_text_or_a_date(app: Any, broker: Broker, eta: Any, instant: datetime) -> None:
    app.send_task("proj.add", (1, 2), eta=eta)
    assert broker.one_waiting().eta_ms == ms(instant)


def test_microseconds_are_rounded_up(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), eta=datetime(2026, 4, 1, 0, 0, 0, 1, tzinfo=UTC))
    assert broker.one_waiting().eta_ms == ms(datetime(2026, 4, 1, tzinfo=UTC)) + 1


def test_countdown_takes_precedence_over_eta_as_in_celery(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=5, eta=datetime(2027, 1, 1, tzinfo=UTC))
    assert broker.one_waiting().eta_ms == ms(NOW + timedelta(seconds=5))


@pytest.mark.parametrize("delay", [{"countdown": 0}, {"countdown": 0.0}, {"countdown": None}, {"eta": None}, {}])
def test_a_call_without_a_delay_stays_with_celery(add: Any, broker: Broker, delay: dict[str, Any]) -> None:
    add.apply_async((1, 2), **delay)
    headers = broker.one_sent()["headers"]
    assert headers["eta"] is None
    assert "wheel" not in headers


@pytest.mark.parametrize(
    "delay",
    [{"countdown": -5}, {"eta": NOW - timedelta(microseconds=1)}, {"eta": NOW}, {"eta": "1969-01-01T00:00:00Z"}],
)
def test_a_past_eta_goes_to_the_task_queue_with_its_eta(add: Any, broker: Broker, delay: dict[str, Any]) -> None:
    add.apply_async((1, 2), **delay)
    headers = broker.one_sent()["headers"]
    assert headers["eta"] is not None
    assert "wheel" not in headers


def test_a_past_countdown_takes_precedence_over_a_future_eta_as_in_celery(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), countdown=-1, eta=datetime(2027, 1, 1, tzinfo=UTC))
    assert broker.one_sent()["headers"]["eta"] == (NOW - timedelta(seconds=1)).isoformat()


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
        (
            {"eta": 5},
            TypeError,
            "eta must be a datetime, or a text in ISO 8601 like 2030-.*, got 5$",
        ),
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


def test_the_last_instant_of_9998_is_accepted(add: Any, broker: Broker) -> None:
    add.apply_async((1, 2), eta=datetime(9998, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC))
    assert broker.one_waiting().eta_ms == ms(datetime(9999, 1, 1, tzinfo=UTC)) - 1


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
