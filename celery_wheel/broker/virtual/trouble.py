"""Errors of transports, sorted by their remedy. Each transport has errors of its own; none is imported here.

::

    lost        the server or the connection is gone               everything waits and is tried again
    later       the server says so: too many requests, its fault   that destination waits and is tried again
    all else    the server's answer about this message             tried a few times more, then the message is rejected
"""

from __future__ import annotations

from typing import Any

from kombu.exceptions import OperationalError


def lost(connection: Any) -> tuple[type[BaseException], ...]:
    """Return the errors that this transport raises when it cannot reach its server."""
    errors = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
    return (*errors, *connection.connection_errors, *connection.channel_errors, OperationalError, OSError)


def later(error: BaseException) -> bool:
    """Whether the message is not at fault, as botocore's ClientError says it; errors without an answer do not."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return False
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or status >= 500 or "throttl" in str(answer.get("Error", {}).get("Code")).lower()


def told(error: BaseException) -> str:
    """Return the error's name and text."""
    return f"{type(error).__name__}: {error}"
