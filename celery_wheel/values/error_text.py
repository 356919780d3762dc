"""The text of an error that arose from reading a message: for a log, a reason, a metric or a page.

An error quotes what it could not read: ``repr`` of a UnicodeDecodeError has the whole body, and ``int("4111…")`` raises
one with a card's number. Logs and reasons are read by people who may not read bodies, and an error may be as long as
its message. So the text of an error is kept only where it is known to quote nothing:

::

    Malformed                                          its rule, without the value behind "got"
    wrong JSON, UTF-8, base64, zlib; lost connection   its own text: a place, and one byte at most
    any other error                                    the name of its class

Nothing is lost: the bytes are kept beside the reason, for those who may read them. Standard library only.
"""

from __future__ import annotations

import binascii
import json
import traceback
import zlib

from celery_wheel.values.format import printable
from celery_wheel.values.mask import unquoted

#: The longest text of an error, in characters.
MAX_ERROR = 300

#: Errors with a text of their library, which has at most a place and one byte or character of what was read; errors of
#: the system and of a connection, which know no message.
_OF_LIBRARIES = (json.JSONDecodeError, UnicodeDecodeError, UnicodeEncodeError, binascii.Error, zlib.error, OSError)


class Malformed(ValueError):
    """A value breaks a rule: ``<name> must be <rule>, got <value>``. The text quotes values only behind "got"."""


def error_text(error: BaseException) -> str:
    """Return the text of an error without anything that the message had in it, at most ``MAX_ERROR`` characters."""
    if isinstance(error, RecursionError):
        return "it must not be nested this deeply"
    if isinstance(error, Malformed):
        return printable(unquoted(str(error)), MAX_ERROR)
    if isinstance(error, _OF_LIBRARIES) and str(error):
        return printable(str(error), MAX_ERROR)
    return type(error).__name__


def error_place(error: BaseException) -> str:
    """Return the kind of an error and the line that raised it, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__qualname__}" + "".join(f" in {one.filename}, line {one.lineno}" for one in frames)
