"""Errors that the broker edges share. A file of its own: the command line imports it too, and no edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from celery_wheel.errors import BrokerError, PublishInterrupted

#: The remedy where a broker does not answer.
CHECK_BROKER = "check that it runs and that this host reaches it, or correct broker_url"


class UnencodableMessage(ValueError):
    """This broker cannot carry the message of a row; the text gives the reason."""


def not_adopted(shard: int) -> BrokerError:
    return BrokerError(
        f"this scheduler does not hold shard {shard}: its wheel queue is not read and no message was taken; adopt the "
        "shard first"
    )


def stopped(confirmed: set[int]) -> PublishInterrupted:
    return PublishInterrupted("the lease has run out or the shard was left: no more messages are published", confirmed)


def url_of(connection: Any) -> str:
    """Return a connection's URL with its password hidden; kombu's ``as_uri`` shows a hidden one where there is none."""
    url = str(connection.as_uri())
    return url if connection.password else url.replace("//:**@", "//").replace(":**@", "@")


@contextmanager
def broker_errors(connection: Any) -> Iterator[None]:
    """Raise the transport's connection errors as BrokerError; the connection stays open."""
    try:
        yield
    except (OperationalError, OSError, *connection.connection_errors) as error:
        raise BrokerError(f"the broker at {url_of(connection)} does not answer ({error}); {CHECK_BROKER}") from error
