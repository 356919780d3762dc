"""What all tests have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.rabbit import RabbitServer


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Celery's commands set levels for the whole process; another test looks for a warning."""
    root = logging.getLogger()
    level, disabled = root.level, root.manager.disable
    yield
    root.setLevel(level)
    logging.disable(disabled)


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """One for all tests of a process, since it starts slowly; each test has a virtual host of its own."""
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server
