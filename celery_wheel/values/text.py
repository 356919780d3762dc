"""The text that every store and every broker can hold (ids, names, keys), whole numbers, and the URLs of stores.

PostgreSQL stores no NUL, and a lone surrogate has no UTF-8. The producer, the requests, the bulk loads and the
scheduler share the rule: a text that one of them accepts must not fail in the transaction of another, which would roll
back the other messages of that transaction.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from celery_wheel.values.error_text import Malformed

#: The longest name or id, in characters and in bytes as UTF-8. One index row holds two of them, a queue and a task, and
#: PostgreSQL limits an index row to 2,704 bytes.
MAX_TEXT, MAX_TEXT_BYTES = 512, 1_024

#: Every eta is before this instant, 1 January 9999. A later eta overflows a date in some time zone.
END_OF_TIME_MS = 253_370_764_800_000


#: ``str.isdigit`` takes "²", which ``int`` refuses, and ``int`` refuses more than 4,300 digits.
_WHOLE = re.compile(r"0*([0-9]{1,18})").fullmatch


EXAMPLES = "sqlite:////var/lib/wheel/wheel.sqlite3, postgresql://user@host/database or django://default"

#: The group of the entry points by which packages add schemes.
SCHEMES = "celery_wheel.stores"

#: Characters that would break the line of a list, of a log or of a metric.
_is_broken = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]").search

_FILE = re.compile(r"/(?!:memory:|file:)[^?]+").fullmatch
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?").fullmatch


def whole_number(text: str) -> int | None:
    """Return the number that a person wrote in the digits 0 to 9, below 10**18; None for any other text."""
    found = _WHOLE(text)
    return int(found[1]) if found else None


def text_rule(value: Any, at_least: int = 1, *, any_length: bool = False) -> str | None:
    """Return the rule that ``value`` breaks, to complete "must be …"; None where the text can be stored.

    Args:
        any_length: allow any length, for a text outside all indexes, like the reason of a command.
    """
    if not isinstance(value, str):
        return "a text"
    if not any_length and not at_least <= len(value) <= MAX_TEXT:
        return f"a text of {at_least} to {MAX_TEXT} characters"
    if "\0" in value:
        return "without NUL characters"
    if value.isascii():
        return None
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "text that can be written as UTF-8"
    return None if any_length or size <= MAX_TEXT_BYTES else f"at most {MAX_TEXT_BYTES:,} bytes as UTF-8"


def check_text(name: str, value: Any, at_least: int = 1, *, any_length: bool = False) -> str:
    """Return ``value``. Raises ValueError, naming the field and the rule, where it cannot be stored."""
    if type(value) is str and at_least <= len(value) <= MAX_TEXT and value.isascii() and "\0" not in value:
        return value  # the fast path of nearly every text: a message has eight
    rule = text_rule(value, at_least, any_length=any_length)
    if rule is not None:
        raise Malformed(f"{name} must be {rule}, got {value!r:.60}")
    text: str = value
    return text


def group_name_rule(value: Any) -> str | None:
    """Return the rule that the name of a group breaks, to complete "must be …"; None for a good name."""
    rule = text_rule(value)
    return "a text without line breaks and control characters" if rule is None and _is_broken(value) else rule


def check_group(name: str, value: Any) -> str:
    """Return the name of a group. Raises ValueError, naming the field and the rule, for another text."""
    if rule := group_name_rule(value):
        raise Malformed(f"{name} must be {rule}, got {value!r:.60}")
    group: str = value
    return group


def group_rule(group: str, key: str | None, unique: str | None = None) -> str | None:
    """Return why a task of a group must not have that key or unique name; None where both may be beside the group.

    The group chooses the shard. A unique name that is the group, or begins with it and a colon, belongs to the group,
    so that one shard decides about it.
    """
    if key is not None and key != group:
        rule = f"key must be left out, since the group {group!r} chooses the shard, got {key!r}"
    elif unique is not None and unique != group and not unique.startswith(f"{group}:"):
        rule = f"unique must be the group {group!r}, or begin with it and a colon: it chooses the shard; got {unique!r}"
    else:
        return None
    return f'{rule}; change it, or name no group: wheel={{"group": None}}'


def is_store_url(url: str) -> bool:
    """Whether a text is the URL of a file, of a PostgreSQL database, or of a scheme that a package adds."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("sqlite", "sqlite+pysqlite"):
        return _FILE(rest) is not None
    if scheme in ("postgres", "postgresql", "postgresql+psycopg"):
        place, _, database = rest.partition("?")[0].partition("/")
        return bool(database) and all(map(_HOST, place.rpartition("@")[2].split(",")))
    return bool(separator) and scheme in _added_schemes()


@cache
def _added_schemes() -> frozenset[str]:
    return frozenset(added.name for added in entry_points(group=SCHEMES))
