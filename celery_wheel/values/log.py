"""Loggers whose lines nobody can forge by a name in them.

::

    logger.info("task %s was cancelled", "a\\nINFO all is well\\x1b[2K")    a producer has chosen the id
      ─► task a\\x0aINFO all is well\\x1b[2K was cancelled                  one line, and nothing acts on a terminal

Each module of celery-wheel gets its logger here. The values behind ``extra`` stay as they are: they are data, which a
formatter of JSON escapes by itself. A traceback ends with the text of an error, so each of its lines is indented: none
looks like the beginning of another record. Standard library only.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from celery_wheel.values.format import printable


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, with ``make_visible``."""
    logger = logging.getLogger(name)
    logger.addFilter(make_visible)
    return logger


def make_visible(record: logging.LogRecord) -> bool:
    """Show each invisible character in the arguments and the traceback of a record as its code; keep the record."""
    if isinstance(record.args, tuple):
        record.args = tuple(map(_visible, record.args))
    elif record.args:
        record.args = {name: _visible(value) for name, value in record.args.items()}
    if record.exc_info and not record.exc_text:
        lines = "".join(traceback.format_exception(*record.exc_info)).splitlines()
        record.exc_text = "\n".join(f"  {_escaped(line)}" for line in lines)
    return True


def _escaped(text: str) -> str:
    return printable(text, len(text))


class _Visible:
    """An argument whose text has invisible characters."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _escaped(str(self._value))

    def __repr__(self) -> str:
        return _escaped(repr(self._value))


def _visible(value: Any) -> Any:
    if isinstance(value, int | float) or value is None:  # %d needs the number
        return value
    return value if str(value).isprintable() and repr(value).isprintable() else _Visible(value)
