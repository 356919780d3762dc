"""What all tests have in common."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_is_left_as_it_was() -> Iterator[None]:
    """Celery's commands set levels for the whole process; another test looks for a warning."""
    root = logging.getLogger()
    level, disabled = root.level, root.manager.disable
    yield
    root.setLevel(level)
    logging.disable(disabled)
