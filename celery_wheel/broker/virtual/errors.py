"""Errors of transports, sorted by their remedy. Each transport has its own error classes; none is imported here.

::

    connection_errors  the server or the connection is gone           everything waits and is tried again
    is_transient       the server answers "later": too many requests  that destination waits and is tried again
    all other errors   the server's answer about this message         a few more tries, then the message is rejected
"""

from __future__ import annotations

from typing import Any

from kombu.exceptions import OperationalError


def connection_errors(connection: Any) -> tuple[type[BaseException], ...]:
    """Return the errors that this transport raises when it cannot reach its server."""
    errors = (*connection.recoverable_connection_errors, *connection.recoverable_channel_errors)
    return (*errors, *connection.connection_errors, *connection.channel_errors, OperationalError, OSError)


def is_transient(error: BaseException) -> bool:
    """Whether the server's answer, in the form of botocore's ClientError, does not blame the message."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, dict):
        return False
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or status >= 500 or "throttl" in str(answer.get("Error", {}).get("Code")).lower()


def format_error(error: BaseException) -> str:
    """Return the error's name and text."""
    return f"{type(error).__name__}: {error}"
