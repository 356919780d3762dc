"""Errors of kombu as BrokerError, for code that calls kombu past the edges: a drain that only counts, and the bench."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from celery_wheel.errors import BrokerError


@contextmanager
def broker_errors(connection: Any) -> Iterator[None]:
    """Raise the transport's connection errors as BrokerError; the connection stays open."""
    try:
        yield
    except (OperationalError, OSError, *connection.connection_errors) as error:
        raise BrokerError(
            f"the broker at {connection.as_uri()} does not answer ({error}); start it, or correct broker_url"
        ) from error
