"""Errors of celery-wheel on their way through Spark, which passes on only their text.

In a process of Spark, ``concise`` reports the error's name and message without a traceback. Spark's own error begins
with that line, and ``unwrap_errors`` makes the first error of it again. Tracebacks stay where
``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled`` is ``false``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from celery_wheel.errors import WheelError

#: Spark sets the first in its processes, by the setting above. A process reads the second when it reports the error
#: that ends it, so it is of no other error.
_SIMPLIFIED, _HIDDEN = "SPARK_SIMPLIFIED_TRACEBACK", "SPARK_HIDE_TRACEBACK"

#: The name and the message of an error in one of Spark's texts; the last is the one that was raised.
_OURS = re.compile(r"(?:^|[\s:])(celery_wheel(?:\.\w+)+)\.(\w+): (.*)", re.MULTILINE)


@contextmanager
def concise() -> Iterator[None]:
    """Hide the traceback of a WheelError of the block, or of the decorated function, in a process of Spark."""
    try:
        yield
    except WheelError:
        if os.environ.get(_SIMPLIFIED):
            os.environ[_HIDDEN] = "1"
        raise


def wheel_error(error: BaseException) -> WheelError | None:
    """Return the error of celery-wheel that Spark's error is about; None where it is about another."""
    if isinstance(error, WheelError):
        return error
    found = _OURS.findall(str(error))
    if not found:
        return None
    module, name, message = found[-1]
    try:
        kind = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # of another version, on a remote Spark
        kind = WheelError
    return kind(message) if isinstance(kind, type) and issubclass(kind, WheelError) else WheelError(message)


@contextmanager
def unwrap_errors() -> Iterator[None]:
    """Raise the error of celery-wheel alone where the block, or the decorated function, ends with Spark's about it."""
    try:
        yield
    except Exception as error:
        ours = wheel_error(error)
        if ours is None or ours is error:
            raise
        raise ours from None
