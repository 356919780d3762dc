"""A test's end restores the app, and one test does not affect another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.worker import state as worker_state

import celery_wheel
from celery_wheel.app import WheelApp
from celery_wheel.conf import Conf
from celery_wheel.testing import VirtualWheel
from tests.unit.testing.conftest import NOWHERE

#: Attributes that Celery makes at their first use.
LAZY = {"control", "events", "timezone", "Task", "AsyncResult", "GroupResult", "loader", "_loader_cache"}


def state_of(app: Any) -> dict[str, Any]:
    own = {name: value for name, value in vars(app).items() if name not in LAZY}
    amqp = vars(app).get("amqp")
    return {
        "class": type(app),
        "own": own,
        "amqp": amqp and (type(amqp), dict(vars(amqp))),
        "changes": dict(app.conf.changes),
        "revoked": set(worker_state.revoked),
        "stamps": dict(worker_state.revoked_stamps),
        "call": celery.Task.__call__,
        "traces": [task.__trace__ for task in app.tasks.values()],
    }


def use(app: Any) -> None:
    with VirtualWheel(app) as wheel:
        add = app.tasks["proj.add"]
        add.apply_async((1, 2), countdown=60)
        add.apply_async((1, 2), countdown=60).revoke()
        add.delay(1, 2)
        app.tasks["proj.flaky"].delay(1)
        wheel.run_all()
        assert len(wheel.ran) == 4


def fail_in(app: Any) -> None:
    with pytest.raises(KeyError, match="no"), VirtualWheel(app) as wheel:  # noqa: PT012 - the error leaves the wheel
        app.tasks["proj.fail"].apply_async(countdown=60)
        wheel.run_all()


@pytest.mark.parametrize("kind", [celery_wheel.Celery, celery.Celery])
@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("use", [use, fail_in])
def test_the_app_is_restored_exactly(
    make_app: Callable[..., Any], kind: Any, touched: bool, eager: bool, use: Callable[[Any], None]
) -> None:
    app = make_app(kind, task_always_eager=eager)
    assert app.tasks["proj.add"]
    if touched:
        assert app.pool
        assert app.amqp.producer_pool
        assert app.amqp.send_task_message
    before = state_of(app)
    use(app)
    assert state_of(app) == before
    assert isinstance(app, WheelApp) == (kind is celery_wheel.Celery)
    assert app.conf.task_always_eager is eager


def test_one_wheel_does_not_affect_another(make_app: Callable[..., Any]) -> None:
    app = make_app()
    with VirtualWheel(app) as wheel:
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60, task_id="same")
        result.revoke()
        store = Path(Conf(app).store.removeprefix("sqlite:///"))
        assert wheel.pending
        assert store.exists()
    assert not store.parent.exists()
    with VirtualWheel(app) as wheel:
        assert (wheel.pending, wheel.ran, wheel.skipped) == ([], [], [])
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60, task_id="same")
        assert result.state == "PENDING"
        assert len(wheel.run_all()) == 1


def test_settings_of_a_django_project_are_covered_in_their_spelling(make_app: Callable[..., Any]) -> None:
    class Settings:
        CELERY_BROKER_URL = NOWHERE
        CELERY_TASK_ALWAYS_EAGER = False
        CELERY_WHEEL_STORE = "postgresql://nobody@127.0.0.1:1/none"
        CELERY_WHEEL_SHARDS = 8
        CELERY_WHEEL_ENABLED = False

    app = celery_wheel.Celery("proj", set_as_current=False)
    app.config_from_object(Settings, namespace="CELERY")
    app.conf.update(CELERY_WHEEL_MIN_DELAY=10, CELERY_TASK_ALWAYS_EAGER=True)

    @app.task(name="proj.add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    assert (Conf(app).shards, Conf(app).enabled, app.conf.task_always_eager) == (8, False, True)
    with VirtualWheel(app) as wheel:
        assert not app.conf.task_always_eager
        result = add.apply_async((1, 2), countdown=60)
        assert [one.where for one in wheel.pending] == ["wheel"]
        wheel.run_all()
        assert result.get() == 3
    assert (Conf(app).shards, Conf(app).enabled, app.conf.task_always_eager) == (8, False, True)
    assert Conf(app).store == Settings.CELERY_WHEEL_STORE


def test_the_app_may_keep_its_own_result_backend(make_app: Callable[..., Any]) -> None:
    app = make_app(result_backend="cache+memory://")
    with VirtualWheel(app, results="app") as wheel:
        assert wheel.app.backend.as_uri() == "memory:///"
        result = app.tasks["proj.add"].apply_async((1, 2), countdown=60)
        wheel.run_all()
    assert result.get() == 3
    with pytest.raises(ValueError, match="'memory' or 'app'"):
        VirtualWheel(app, results="redis")
