"""What all tests of the simulation need."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Errors are this test's daily bread; what matters is in a Violation."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
