"""``celery_wheel.Celery`` and ``install``: which apps divert, before and after use, here and in another process."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import celery
import pytest
from celery.app.amqp import AMQP

import celery_wheel
from celery_wheel import Celery, install
from tests.unit.producer.memory_broker import Broker


class OwnApp(celery.Celery):  # type: ignore[misc]
    """A project's own app class."""

    def send_task(self, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().send_task(*args, **kwargs)


class OwnAMQP(AMQP):  # type: ignore[misc]
    """A project's own AMQP class."""


def diverts(app: Any, broker: Broker) -> bool:
    app.send_task("proj.add", (1, 2), countdown=60)
    waiting, sent = broker.waiting(), broker.sent()
    assert len(waiting) + len(sent) == 1
    return bool(waiting)


def test_a_plain_app_does_not_divert(make_app: Callable[..., Any], broker: Broker) -> None:
    assert not diverts(make_app(celery.Celery), broker)


@pytest.mark.parametrize("kind", [celery.Celery, OwnApp])
@pytest.mark.parametrize("used", ["never", "amqp", "sender", "sent"])
def test_install_works_before_and_after_use(make_app: Callable[..., Any], broker: Broker, kind: Any, used: str) -> None:
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


def test_a_second_install_changes_nothing(make_app: Callable[..., Any], broker: Broker) -> None:
    for app in (make_app(celery.Celery), make_app(OwnApp), make_app(Celery)):
        kind = type(install(app))
        assert type(install(app)) is kind
        assert diverts(app, broker)


def test_install_accepts_the_current_apps_proxy(make_app: Callable[..., Any], broker: Broker) -> None:
    from celery import current_app
    from celery._state import _set_current_app, get_current_app

    before, app = get_current_app(), make_app(celery.Celery)
    app.set_current()
    try:
        assert install(current_app) is app
    finally:
        _set_current_app(before)
    assert diverts(app, broker)


def test_a_projects_own_class_is_kept(make_app: Callable[..., Any], broker: Broker) -> None:
    app = install(make_app(OwnApp))
    assert isinstance(app, OwnApp)
    assert type(app).__name__ == "OwnApp"
    assert diverts(app, broker)
    assert app.calls == 1


@pytest.mark.parametrize("amqp", [OwnAMQP, "tests.unit.producer.test_send_install:OwnAMQP"])
def test_an_own_amqp_class_diverts_as_well(broker: Broker, amqp: Any) -> None:
    with Celery("proj", broker="memory://", set_as_current=False, amqp=amqp) as app:
        assert isinstance(app.amqp, OwnAMQP)
        assert diverts(app, broker)


def test_a_sender_that_is_set_over_the_apps_own_diverts(app: Any, broker: Broker) -> None:
    original = app.amqp.send_task_message
    names: list[str] = []

    def noting(producer: Any, name: str, message: Any, **options: Any) -> Any:
        names.append(name)
        return original(producer, name, message, **options)

    app.amqp.send_task_message = noting
    assert app.amqp.send_task_message is noting, "as on a plain Celery"
    assert diverts(app, broker)
    assert names == ["proj.add"]


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("kind", [Celery, celery.Celery, OwnApp])
def test_a_patched_sender_replaces_the_apps_own_which_diverts_again_afterwards(
    make_app: Callable[..., Any], broker: Broker, kind: Any, used: bool
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


def test_a_sender_that_was_set_before_install_is_wrapped(make_app: Callable[..., Any], broker: Broker) -> None:
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
    (message,) = broker.waiting()
    assert message.queue == "later"


@pytest.mark.parametrize("make", [Celery, lambda *a, **k: install(celery.Celery(*a, **k)), OwnApp])
def test_a_pickled_app_still_diverts(broker: Broker, make: Any) -> None:
    with make("proj", broker="memory://", set_as_current=False, namespace="CELERY") as app:
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


def test_a_celery_app_is_a_celery_app() -> None:
    assert issubclass(Celery, celery.Celery)
    assert celery_wheel.install is install
