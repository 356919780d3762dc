"""Errors in words where kombu itself is asked, past the edges: by a drain that only counts, and by the bench."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from celery_wheel.errors import BrokerError


@contextmanager
def answering(connection: Any) -> Iterator[None]:
    """What the transport raises where its server does not answer becomes a BrokerError. Closes nothing."""
    try:
        yield
    except (OperationalError, OSError, *connection.connection_errors) as error:
        raise BrokerError(
            f"the broker at {connection.as_uri()} does not answer ({error}); start it, or correct broker_url"
        ) from error
