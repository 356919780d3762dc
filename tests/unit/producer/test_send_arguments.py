"""An app's own class gets the arguments of ``send_task`` unchanged, above the wheel's class and below it."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from weakref import WeakSet

import celery
import pytest
from celery import _state, chain, shared_task
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

from celery_wheel import Celery, install
from tests.unit.producer.memory_broker import Broker, dispatched_form, run

ETA = datetime(2099, 1, 1, tzinfo=UTC)

POSITIONAL = ("proj.add", (1, 2), {}, 60, None, "an-id", None, None, None)


class Named(celery.Celery):  # type: ignore[misc]
    """Accepts the positions that nearly every override accepts."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        self.seen = options
        return super().send_task(name, args, kwargs, **options)


class Noting(celery.Celery):  # type: ignore[misc]
    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = args, kwargs
        return super().send_task(*args, **kwargs)


class Above(Celery):
    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        self.seen = options
        return super().send_task(name, args, kwargs, **options)


@pytest.fixture(params=[Named, Noting, Above, celery.Celery, Celery])
def own(request: pytest.FixtureRequest, make_app: Callable[..., Any]) -> Any:
    return install(make_app(request.param, result_backend="cache+memory://"))


CALLS: dict[str, Callable[[Any], Any]] = {
    "delay": lambda app: app.tasks["proj.add"].delay(1, 2),
    "apply_async": lambda app: app.tasks["proj.add"].apply_async((1, 2)),
    "apply_async, countdown": lambda app: app.tasks["proj.add"].apply_async((1, 2), countdown=60),
    "apply_async, eta": lambda app: app.tasks["proj.add"].apply_async((1, 2), eta=ETA, queue="celery"),
    "signature": lambda app: app.tasks["proj.add"].s(1, 2).set(countdown=60).apply_async(),
    "signature of an unknown task": lambda app: app.signature("else.where", (1,)).apply_async(countdown=60),
    "chain": lambda app: chain(app.tasks["proj.add"].s(1, 2).set(countdown=60), app.tasks["proj.add"].s(1))(),
    "name alone": lambda app: app.send_task("proj.add"),
    "by name": lambda app: app.send_task(name="proj.add", args=(1, 2), kwargs={}, countdown=60, task_id="t"),
    "producer": lambda app: app.send_task("proj.add", args=(1, 2), countdown=60, producer=None, connection=None),
    "celery call": lambda app: app.send_task("proj.add", args=(1, 2), kwargs={}, countdown=60, eta=None, expires=None),
}


@pytest.mark.parametrize("call", CALLS)
def test_any_app_class_accepts_any_call_of_celery(own: Any, broker: Broker, call: str) -> None:
    CALLS[call](own)
    waiting, sent = broker.waiting(), broker.sent()
    assert len(waiting) + len(sent) == 1
    is_delayed = call not in ("delay", "apply_async", "name alone")
    assert bool(waiting) is is_delayed


def test_a_class_with_three_positions_gets_further_arguments_by_name(
    make_app: Callable[..., Any], broker: Broker
) -> None:
    app = install(make_app(Named))
    app.send_task(*POSITIONAL)
    assert broker.one_waiting().task_id == "an-id"
    assert list(app.seen) == ["countdown", "eta", "task_id", "producer", "connection", "router"]


def test_beat_sends_through_any_app_class(own: Any, broker: Broker) -> None:
    scheduler = Scheduler(app=own, lazy=True)
    for task in ("proj.add", "else.where"):
        entry = ScheduleEntry(
            name=task, task=task, args=(1, 2), schedule=schedule(1, app=own), options={"countdown": 60}, app=own
        )
        scheduler.apply_async(entry, advance=False)
    assert [message.task for message in broker.waiting()] == ["proj.add", "else.where"]


def test_a_retry_goes_through_any_app_class(own: Any, broker: Broker) -> None:
    @own.task(bind=True, name="proj.flaky", shared=False)
    def flaky(self: Any) -> None:
        raise self.retry(countdown=5)

    flaky.apply_async(countdown=60, task_id="t")
    for _ in range(2):
        message = broker.one_waiting()
        assert message.task_id == "t"
        run(own, dispatched_form(message))


def test_a_shared_task_goes_through_any_app_class(own: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery._state._on_app_finalizers", set(_state._on_app_finalizers))
    monkeypatch.setattr("celery._state._apps", WeakSet([own]))  # apps of other tests may be alive, and have the task

    @shared_task(name="proj.shared")
    def shared() -> None: ...

    own.finalize()
    own.tasks["proj.shared"].apply_async(countdown=60)
    assert broker.one_waiting().task == "proj.shared"


@pytest.mark.parametrize("kind", [celery.Celery, Celery])
def test_calls_by_position_equal_those_of_celery(make_app: Callable[..., Any], broker: Broker, kind: Any) -> None:
    install(make_app(kind)).send_task(*POSITIONAL)
    assert broker.one_waiting().task_id == "an-id"


def test_positions_stay_positions_and_names_stay_names(make_app: Callable[..., Any], broker: Broker) -> None:
    app = install(make_app(Noting))
    app.send_task("proj.add", (1, 2), kwargs={}, queue="celery", task_id="t")
    assert app.seen == (("proj.add", (1, 2)), {"kwargs": {}, "queue": "celery", "task_id": "t"})
    app.send_task("proj.add", (1, 2), {}, None, None, "t", wheel={"key": "k"})
    assert app.seen == (("proj.add", (1, 2), {}, None, None, "t"), {})


def test_a_delay_for_the_wheel_arrives_as_an_instant_in_its_place(make_app: Callable[..., Any], broker: Broker) -> None:
    app = install(make_app(Noting))
    app.send_task("proj.add", (1, 2), countdown=60, eta=ETA, task_id="t")
    (args, options) = app.seen
    assert (args, list(options)) == (("proj.add", (1, 2)), ["countdown", "eta", "task_id"])
    app.send_task("proj.add", eta=ETA)
    assert app.seen[1]["eta"] == ETA.isoformat()
    assert "countdown" not in app.seen[1]
    app.send_task("proj.add", (1, 2), {}, 60)
    (args, options) = app.seen
    assert (args, sorted(options)) == (("proj.add", (1, 2), {}, None), ["eta", "task_id"])
    assert len(broker.waiting()) == 3


@pytest.mark.parametrize("kind", [celery.Celery, Celery])
def test_a_call_that_celery_refuses_raises_celerys_error(make_app: Callable[..., Any], kind: Any) -> None:
    app = make_app(kind)
    with pytest.raises(TypeError, match="positional argument"):
        app.send_task("proj.add", *[None] * 40)
    with pytest.raises(TypeError, match="multiple values"):
        app.send_task("proj.add", (1, 2), args=(1, 2))
    with pytest.raises(TypeError, match="name"):
        app.send_task(countdown=60)
