"""A sender with a wrong setting raises at its first delayed call, whichever setting it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_wheel.control import Wheel
from celery_wheel.errors import SettingError
from tests.unit.producer.memory_broker import Broker

WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"wheel_stroe": "sqlite:////tmp/x"},
        "wheel_stroe is an unknown setting and has no effect; did you mean wheel_store",
    ),
    ({"wheel_store": "postgresq://user:secret@host/database"}, "wheel_store must be a database URL"),
    ({"wheel_store": "sqlite:///:memory:"}, "wheel_store must be a database URL"),
    ({"wheel_rate_limits": {"celery": "junk"}}, "wheel_rate_limits must be a dict of rates"),
    ({"wheel_rate_limits": "5/s"}, "wheel_rate_limits must be a dict of rates"),
    ({"wheel_lease": 0}, "wheel_lease must be a time of at least 0.1 s"),
]


@pytest.mark.parametrize(("settings", "says"), WRONG)
def test_a_delayed_call_raises(
    make_app: Callable[..., Any], broker: Broker, settings: dict[str, Any], says: str
) -> None:
    app = make_app(**settings)
    for _ in range(2):
        with pytest.raises(SettingError, match=says) as caught:
            app.send_task("proj.add", (1, 2), countdown=60)
        assert "secret" not in str(caught.value)
    with pytest.raises(SettingError, match=says):
        _ = Wheel(app).store
    assert broker.waiting() == broker.sent() == []
    app.send_task("proj.add", (1, 2))  # no task of the wheel
    app.conf.wheel_enabled = False
    app.send_task("proj.add", (1, 2), countdown=60)


def test_a_corrected_setting_is_read_again(make_app: Callable[..., Any], broker: Broker) -> None:
    app = make_app(wheel_lease=0)
    with pytest.raises(SettingError, match="wheel_lease"):
        app.send_task("proj.add", (1, 2), countdown=60)
    app.conf.wheel_lease = 2
    app.send_task("proj.add", (1, 2), countdown=60)
    assert broker.one_waiting().task == "proj.add"
