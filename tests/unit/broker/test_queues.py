"""Names and declarations of queues, addresses without user and password, and the base of the edges that push."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue

from celery_wheel.broker.deliveries import Deliveries
from celery_wheel.broker.queues import Undeclared, wheel_queue
from celery_wheel.broker.transport import broker_places
from celery_wheel.errors import BrokerError
from celery_wheel.store.place import shown_place
from tests.kit.patience import patience


@pytest.fixture
def connection() -> Iterator[Any]:
    with Connection("memory://") as connection:
        yield connection


def publish(connection: Any, *entities: Any) -> None:
    declare = Undeclared(connection, list(entities))
    with connection.Producer(auto_declare=False) as producer:
        producer.publish("x", exchange="", routing_key="elsewhere", declare=declare, retry=True)


def test_a_connection_declares_a_queue_once_until_it_is_lost(connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = []
    monkeypatch.setattr(connection.default_channel, "queue_declare", lambda queue, **_: declared.append(queue))
    queue = wheel_queue("night", 0)
    publish(connection, queue)
    publish(connection, queue)
    assert declared == ["night.0"]
    connection.declared_entities.clear()  # as kombu does when a connection is lost
    publish(connection, queue)
    assert declared == ["night.0", "night.0"]


def test_one_list_looks_at_each_iteration(connection: Any) -> None:
    queue, exchange = wheel_queue("night", 1), Exchange("news")
    declare = Undeclared(connection, [queue, exchange])
    assert list(declare) == [queue, exchange]
    connection.declared_entities.add(hash(queue))
    assert list(declare) == [exchange]
    connection.declared_entities.clear()
    assert list(declare) == [queue, exchange]


def test_an_entity_that_may_vanish_is_always_declared(connection: Any) -> None:
    fleeting = [Queue("reply", auto_delete=True), Queue("night.2", queue_arguments={"x-expires": 1000})]
    connection.declared_entities.update(map(hash, fleeting))
    assert list(Undeclared(connection, fleeting)) == fleeting


def test_without_a_connection_all_are_declared() -> None:
    queue = wheel_queue("night", 3)
    assert list(Undeclared(None, [queue])) == [queue]


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("redis://", {"redis://127.0.0.1:6379/0"}),
        ("redis://user:secret@localhost:6380/2", {"redis://127.0.0.1:6380/2"}),
        ("rediss://h/2", {"redis://h:6379/2"}),
        ("redis+socket:///run/redis.sock", {"redis://socket:///run/redis.sock:6379/0"}),
        ("sentinel://a:26379;sentinel://b:26379/0", {"redis://a:26379/0", "redis://b:26379/0"}),
        ("amqp://guest:guest@localhost//", {"amqp://127.0.0.1:5672/"}),
        ("pyamqp://h:5673", {"amqp://h:5673/"}),
        ("amqp://u:secret@a/shop;amqp://u:secret@b/shop", {"amqp://a:5672/shop", "amqp://b:5672/shop"}),
        ("memory://", {"memory://127.0.0.1/"}),
    ],
)
def test_a_place_has_no_user_and_no_password(url: str, places: set[str]) -> None:
    app: Any = Celery("shop", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"master_name": "shop"}
    assert broker_places(app) == places


def test_a_password_in_the_path_of_a_socket_is_masked() -> None:
    app: Any = Celery("shop", broker="redis+socket://:secret@/run/redis.sock", set_as_current=False)
    assert "secret" not in str(broker_places(app))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:secret@db:5432/shop?password=secret&sslmode=require", "postgresql://db:5432/shop"),
        ("postgresql://me:secret@h1:1,h2:2/shop", "postgresql:///shop?host=h1%3A1&host=h2%3A2"),
    ],
)
def test_a_database_is_named_without_user_and_password(url: str, place: str) -> None:
    assert shown_place(url) == place


def test_a_file_is_named_with_its_folder_and_its_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_place("sqlite:///wheel.sqlite3") == f"{tmp_path}/wheel.sqlite3 on {gethostname()}"


class TwoDeliveries(Deliveries):
    """Two messages; reading the first body lets another thread leave the shard."""

    def __init__(self) -> None:
        super().__init__(0, threading.RLock())
        self.leaving = threading.Thread(target=self.leave, args=(1,))
        self.calls: list[str] = []

    def _using(self, doing: str) -> AbstractContextManager[None]:
        return self._lock  # type: ignore[return-value]

    @property
    def _is_up(self) -> bool:
        return True

    def _consume(self) -> None:
        self._unacknowledged.extend([Message(self), Message(self)])

    def _read(self, max_count: int, max_bytes: int) -> bool:
        return False

    def _acknowledge(self, count: int) -> None:
        self.calls.append(f"acknowledge {count}")

    def _disconnect(self) -> None:
        self.calls.append(f"disconnect with {len(self._unacknowledged)}")


class Message:
    def __init__(self, owner: TwoDeliveries) -> None:
        self._owner = owner

    @property
    def body(self) -> bytes:
        if self._owner.leaving.ident is None:
            self._owner.leaving.start()
            self._owner.leaving.join(0.3)  # it waits for the lock
        return b"body"


def test_leaving_a_shard_waits_for_a_peek_to_end() -> None:
    """Otherwise the deque changes during the iteration: a RuntimeError, which ends the thread and the process."""
    deliveries = TwoDeliveries()
    deliveries.adopt(1)
    found, token, more = deliveries.peek(10, 1_000)
    deliveries.leaving.join(patience(30))
    assert (len(found), token.size, more) == (2, 2, False)
    assert deliveries.calls == ["disconnect with 0", "disconnect with 2"]
    assert not deliveries.trim(token)
    with pytest.raises(BrokerError, match="does not hold shard 0"):
        deliveries.peek(10, 1_000)
