"""A connection whose broker accepts and never answers, as where packets vanish: a call ends in its time."""

import socket
from unittest import mock

import pytest
from celery import Celery
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_wheel.broker import transport
from celery_wheel.broker.transport import bounded_connection
from celery_wheel.scheduler.occurrences import DeclaredQueues


def test_a_declaration_does_not_wait_for_a_redis_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, mock.patch.object(transport, "ANSWER_S", 0.2):
        app = Celery("project", broker=f"redis://127.0.0.1:{silent.getsockname()[1]}/0", set_as_current=False)
        with pytest.raises(OperationalError, match=r"[Tt]imeout"):
            DeclaredQueues(app)([Queue("new")])


def test_the_options_of_the_project_have_priority() -> None:
    app = Celery("project", broker="redis://127.0.0.1/0", set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": 60}
    options = bounded_connection(app.connection_for_write).transport_options
    assert options["socket_timeout"] == 60
    assert options["socket_connect_timeout"] == transport.ANSWER_S


def test_other_transports_have_their_own_bounds() -> None:
    app = Celery("project", broker="amqp://127.0.0.1//", set_as_current=False)
    assert bounded_connection(app.connection_for_write).transport_options == {}
