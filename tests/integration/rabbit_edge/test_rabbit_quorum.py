"""Wheel queues of the type "quorum": producer and scheduler declare the same, and a note outlives its holder."""

from typing import Any

import pytest

from celery_wheel.broker.amqp.edge import AmqpBroker
from celery_wheel.broker.reader import QueuedMessageReader
from celery_wheel.store.ports import StoreIdentity
from tests.kit.chunks import BIG
from tests.kit.servers.rabbit import ON_RABBITMQ

pytestmark = [ON_RABBITMQ, pytest.mark.slow]


def types(yard: Any) -> dict[str, str]:
    listed = yard.server.ctl("list_queues", "--silent", "--vhost", yard.connection.virtual_host, "name", "type")
    return dict(line.split("\t") for line in listed.splitlines())


def test_producer_and_scheduler_share_a_quorum_queue(yard: Any) -> None:
    yard.app.conf.wheel_queue_type = "quorum"
    sent = yard.send(3)
    stores = [StoreIdentity("11111111-1111-7111-8111-111111111111", "1", "/srv/a", f"/srv/a on {n}") for n in "xy"]
    edges = [AmqpBroker(yard.app.connection_for_write, QueuedMessageReader(), one, "quorum") for one in stores]
    for epoch, edge in enumerate(edges, 1):
        edge.adopt(0, epoch)
        found = edge.peek(0, 10, BIG)
        while len(found.arrivals) < 3:
            found = edge.peek(0, 10, BIG)
        assert [one.task_id for one in found.arrivals] == sent, "also after a holder that had trimmed none"
        owner = edge.owner(0)
        assert owner is not None
        assert owner.place == stores[epoch - 1].place
        edge.leave(0, epoch)
    found_types = types(yard)
    assert (found_types["wheel.0"], found_types["wheel.0.holder"]) == ("quorum", "quorum")
    for edge in edges:
        edge.close()


def test_a_wheel_queue_is_classic_where_nothing_else_is_said(yard: Any) -> None:
    yard.send(1)
    assert types(yard)["wheel.0"] == "classic"
