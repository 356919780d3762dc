"""Fixtures of all simulation tests."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Disable logging: simulated errors are frequent, and a Violation has the steps that led to it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
