"""Which apps divert, before and after use and in another process; an app's own class gets its arguments unchanged."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import WeakSet

import celery
import pytest
from celery import _state, chain, shared_task
from celery.app.amqp import AMQP
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule

import celery_wheel
from celery_wheel import Celery, install
from tests.unit.producer.memory_broker import Broker, MakeApp, dispatched_form, run


class OwnApp(celery.Celery):  # type: ignore[misc]
    """A project's own app class, which notes the arguments of the last call."""

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        self.seen = args, kwargs
        return super().send_task(*args, **kwargs)


class OwnAMQP(AMQP):  # type: ignore[misc]
    """A project's own AMQP class."""


def diverts(app: Any, broker: Broker) -> bool:
    app.send_task("proj.add", (1, 2), countdown=60)
    waiting, sent = broker.waiting(), broker.sent()
    assert len(waiting) + len(sent) == 1
    return bool(waiting)


def test_a_plain_app_does_not_divert(make_app: MakeApp, broker: Broker) -> None:
    assert not diverts(make_app(celery.Celery), broker)


@pytest.mark.parametrize("kind", [celery.Celery, OwnApp])
@pytest.mark.parametrize("used", ["never", "amqp", "sender", "sent"])
def test_install_works_before_and_after_use(make_app: MakeApp, broker: Broker, kind: Any, used: str) -> None:
    app = make_app(kind)
    if used == "amqp":
        assert app.amqp.queues is not None
    elif used == "sender":
        assert app.amqp.send_task_message is not None
    elif used == "sent":
        app.send_task("proj.add", (1, 2))
        broker.sent()
    queues = app.amqp.queues if used != "never" else None
    assert install(app) is app
    assert isinstance(app, kind)
    assert queues is None or app.amqp.queues is queues
    assert diverts(app, broker)
    app.tasks["proj.add"].apply_async((1, 2), countdown=60)
    assert broker.waiting()


def test_a_second_install_changes_nothing(make_app: MakeApp, broker: Broker) -> None:
    for app in (make_app(celery.Celery), make_app(OwnApp), make_app(Celery)):
        kind = type(install(app))
        assert type(install(app)) is kind
        assert diverts(app, broker)


def test_install_accepts_the_current_apps_proxy(make_app: MakeApp, broker: Broker) -> None:
    before, app = _state.get_current_app(), make_app(celery.Celery)
    app.set_current()
    try:
        assert install(celery.current_app) is app
    finally:
        _state._set_current_app(before)
    assert diverts(app, broker)


def test_a_projects_own_class_is_kept(make_app: MakeApp, broker: Broker) -> None:
    app = install(make_app(OwnApp))
    assert type(app).__name__ == "OwnApp"
    assert diverts(app, broker)
    assert "eta" in app.seen[1]


@pytest.mark.parametrize("amqp", [OwnAMQP, "tests.unit.producer.test_send_apps:OwnAMQP"])
def test_an_own_amqp_class_diverts_as_well(broker: Broker, amqp: Any) -> None:
    with Celery("proj", broker="memory://", set_as_current=False, amqp=amqp) as app:
        assert isinstance(app.amqp, OwnAMQP)
        assert diverts(app, broker)


def test_a_sender_that_is_set_over_the_apps_own_diverts(app: Any, broker: Broker) -> None:
    noting = mock.Mock(side_effect=app.amqp.send_task_message)
    app.amqp.send_task_message = noting
    assert app.amqp.send_task_message is noting, "as on a plain Celery"
    assert diverts(app, broker)
    assert noting.call_args.args[1] == "proj.add"


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("kind", [Celery, celery.Celery, OwnApp])
def test_a_patched_sender_replaces_the_apps_own_which_diverts_again_afterwards(
    make_app: MakeApp, broker: Broker, kind: Any, used: bool
) -> None:
    app = install(make_app(kind))
    if used:
        assert diverts(app, broker)
    with mock.patch.object(app.amqp, "send_task_message") as patched:
        assert app.amqp.send_task_message is patched
        app.send_task("proj.add", (1, 2), countdown=60)
        patched.assert_called_once()
    assert diverts(app, broker)
    app.amqp.send_task_message = mock.Mock()
    del app.amqp.send_task_message
    assert diverts(app, broker)


def test_a_sender_that_was_set_before_install_is_wrapped(make_app: MakeApp, broker: Broker) -> None:
    app = make_app(celery.Celery)
    sender = app.amqp.send_task_message = mock.Mock(side_effect=app.amqp.send_task_message)
    install(app)
    assert diverts(app, broker)
    sender.assert_called_once()
    install(app)
    assert diverts(app, broker)
    assert sender.call_count == 2, "wrapped once"


def test_an_amqp_object_that_is_set_later_diverts(app: Any, broker: Broker) -> None:
    before = app.amqp
    app.amqp = OwnAMQP(app)
    assert isinstance(app.amqp, OwnAMQP)
    assert diverts(app, broker)
    del app.amqp
    assert app.amqp is not before
    assert diverts(app, broker)


def test_queues_that_are_set_after_the_amqp_object_was_made_are_used(app: Any, broker: Broker) -> None:
    assert app.amqp is not None
    app.conf.task_default_queue = "later"
    app.send_task("proj.add", (1, 2), countdown=60)
    assert broker.one_waiting().queue == "later"


@pytest.mark.parametrize("kind", [Celery, celery.Celery, OwnApp])
def test_a_pickled_app_still_diverts(broker: Broker, kind: Any) -> None:
    with kind("proj", broker="memory://", set_as_current=False, namespace="CELERY") as app:
        app.conf.wheel_namespace = "pickled"
        install(app)
        with pickle.loads(pickle.dumps(app)) as copy:  # noqa: S301  # our own bytes
            assert type(copy) is type(app)
            assert copy.conf.wheel_namespace == "pickled"
            copy.send_task("proj.add", (1, 2), countdown=60)
    assert len(broker.waiting(namespace="pickled")) == 1


def test_an_app_with_the_old_pickling_protocol_still_diverts(broker: Broker) -> None:
    with install(OldPickle("proj", set_as_current=False)) as app:
        assert app.conf.task_serializer == "json"  # that way, only settings made after the first read are carried
        app.conf.broker_url = "memory://"
        with pickle.loads(pickle.dumps(app)) as copy:  # noqa: S301  # our own bytes
            assert isinstance(copy, OldPickle)
            assert diverts(copy, broker)


class OldPickle(celery.Celery):  # type: ignore[misc]
    def __reduce_args__(self) -> Any:
        return super().__reduce_args__()


def test_a_spawned_process_gets_an_app_that_diverts(app: Any, tmp_path: Path) -> None:
    pickled = tmp_path / "app.pickle"
    for number, kind in enumerate((Celery, celery.Celery)):
        with kind("proj", broker="memory://", set_as_current=False) as one:
            pickled.write_bytes(pickle.dumps(install(one)))
        code = (
            "import pickle\n"
            f"app = pickle.load(open({str(pickled)!r}, 'rb')); app.send_task('t', countdown=60)\n"
            "from kombu.transport.memory import Channel; print([n for n, q in Channel.queues.items() if q.qsize()])"
        )
        root = Path(celery_wheel.__file__).parents[1]
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
        assert done.stdout.strip() == "['wheel.0']", number


ETA = datetime(2099, 1, 1, tzinfo=UTC)

POSITIONAL = ("proj.add", (1, 2), {}, 60, None, "an-id", None, None, None)


class Named(celery.Celery):  # type: ignore[misc]
    """Accepts the positions that nearly every override accepts."""

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        self.seen = options
        return super().send_task(name, args, kwargs, **options)


class Above(Celery):
    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        self.seen = options
        return super().send_task(name, args, kwargs, **options)


@pytest.fixture(params=[Named, OwnApp, Above, celery.Celery, Celery])
def own(request: pytest.FixtureRequest, make_app: MakeApp) -> Any:
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
    assert bool(waiting) is (call not in ("delay", "apply_async", "name alone"))


def test_a_class_with_three_positions_gets_further_arguments_by_name(make_app: MakeApp, broker: Broker) -> None:
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
def test_calls_by_position_equal_those_of_celery(make_app: MakeApp, broker: Broker, kind: Any) -> None:
    install(make_app(kind)).send_task(*POSITIONAL)
    assert broker.one_waiting().task_id == "an-id"


def test_positions_stay_positions_and_names_stay_names(make_app: MakeApp, broker: Broker) -> None:
    app = install(make_app(OwnApp))
    app.send_task("proj.add", (1, 2), kwargs={}, queue="celery", task_id="t")
    assert app.seen == (("proj.add", (1, 2)), {"kwargs": {}, "queue": "celery", "task_id": "t"})
    app.send_task("proj.add", (1, 2), {}, None, None, "t", wheel={"key": "k"})
    assert app.seen == (("proj.add", (1, 2), {}, None, None, "t"), {})


def test_a_delay_for_the_wheel_arrives_as_an_instant_in_its_place(make_app: MakeApp, broker: Broker) -> None:
    app = install(make_app(OwnApp))
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
def test_a_call_that_celery_refuses_raises_celerys_error(make_app: MakeApp, kind: Any) -> None:
    app = make_app(kind)
    with pytest.raises(TypeError, match="positional argument"):
        app.send_task("proj.add", *[None] * 40)
    with pytest.raises(TypeError, match="multiple values"):
        app.send_task("proj.add", (1, 2), args=(1, 2))
    with pytest.raises(TypeError, match="name"):
        app.send_task(countdown=60)


def test_a_mock_sees_the_countdown_on_the_app_and_an_eta_on_celerys_class(app: Any) -> None:
    """Tests of users assert the options of a call; docs/tasks.md says which options a mock sees."""

    @app.task(name="proj.later", shared=False)  # type: ignore[untyped-decorator]
    def task() -> None: ...

    with mock.patch.object(app, "send_task") as own, mock.patch.object(celery_wheel.Celery, "send_task") as base:
        task.apply_async(countdown=60)
        assert own.call_args.kwargs["countdown"] == 60
        base.assert_not_called()
    with mock.patch.object(celery.Celery, "send_task") as celerys:
        task.apply_async(countdown=60)
        found = celerys.call_args.kwargs
        assert (found.get("countdown"), datetime.fromisoformat(str(found["eta"])).tzinfo) == (None, UTC)
