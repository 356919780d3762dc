"""Queues are declared once a connection, and again after the connection is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from celery_wheel.broker.queues import Undeclared, wheel_queue


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
    channel = connection.default_channel
    monkeypatch.setattr(channel, "queue_declare", lambda queue, **_: declared.append(queue))
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
