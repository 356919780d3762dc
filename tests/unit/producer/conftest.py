"""Apps on kombu's memory transport, which counts as supported here: tests read the messages in its queues."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kombu import pools
from kombu.transport.memory import Channel, Transport

from celery_wheel import Celery
from celery_wheel.store.model import Message
from tests.unit.producer.memory_broker import Broker, MakeApp


@pytest.fixture(autouse=True)
def broker() -> Iterator[Broker]:
    """An empty broker; its queues are of this process, and so are kombu's pools of connections to it.

    It is emptied before a test as well: tests of other folders leave queues there, as a beat on ``memory://`` its own.
    """
    empty()
    yield Broker()
    empty()


def empty() -> None:
    pools.reset()
    Channel.queues.clear()
    Transport.global_state.clear()


@pytest.fixture
def make_app() -> Iterator[Callable[..., Any]]:
    """Makes apps; ``kind`` is the class, everything else a setting."""
    apps: list[Any] = []

    def make(kind: Any = Celery, **settings: Any) -> Any:
        app = kind("proj", broker="memory://", set_as_current=False)
        app.conf.update(settings)

        @app.task(name="proj.add", shared=False)
        def add(x: int, y: int) -> int:
            return x + y

        @app.task(name="proj.touch", shared=False)
        def touch(*args: Any, **kwargs: Any) -> None:
            return None

        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Any:
    return make_app()


@pytest.fixture
def add(app: Any) -> Any:
    return app.tasks["proj.add"]


@pytest.fixture
def send(add: Any, broker: Broker) -> Callable[..., Message]:
    """Sends ``proj.add(1, 2)``, due in a minute unless the options say otherwise; returns its pending message."""

    def diverted(**options: Any) -> Message:
        add.apply_async((1, 2), **({} if "eta" in options else {"countdown": 60}) | options)
        return broker.one_waiting()

    return diverted
