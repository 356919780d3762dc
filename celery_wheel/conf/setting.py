"""One setting: its name, its default, and the rule it must meet.

A setting in seconds has a name without a unit, like Celery's own, and a property that ends in ``_ms``. Promise: an
access reads the configuration, and returns a value that meets the rule, or raises SettingError. No value is cached.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, overload

from celery_wheel.errors import PackageMissing, SettingError
from celery_wheel.values.keyring import MIN_SECRET, Secret

T = TypeVar("T")


class HasApp(Protocol):
    app: Any  #: the Celery app; celery carries no types


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """``phrase`` completes "<name> must be …"; ``parse`` returns the value to use, or raises ValueError."""

    phrase: str
    parse: Callable[[Any], T]


class Setting(Generic[T]):
    """A typed, validated view of one ``wheel_*`` setting. Its docstring is its line in docs/settings.md."""

    name: str

    def __init__(self, default: Any, rule: Rule[T], doc: str, secret: bool = False) -> None:
        self.default = default
        self.rule = rule
        self.secret = secret  # errors do not quote the value, which may hold a password
        self.__doc__ = doc

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.name = "wheel_" + attribute.removesuffix("_ms")

    @overload
    def __get__(self, conf: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, conf: HasApp, owner: type) -> T: ...
    def __get__(self, conf: HasApp | None, owner: type) -> Setting[T] | T:
        if conf is None:
            return self
        value = self._value(conf.app.conf)
        if value is self.default and callable(value):
            value = value(conf.app)
        try:
            return self.rule.parse(value)
        except ValueError:
            got = repr(value)
            if self.secret:  # of a URL the scheme, which has no password; nothing of any other value
                scheme = re.match(r"[a-z0-9+]{1,30}://", value) if isinstance(value, str) else None
                got = f"{scheme[0]}…" if scheme else "another value (not shown)"
            raise SettingError(f"{self.name} must be {self.rule.phrase}, got {got}") from None
        finally:
            del value  # pages of errors show the values of a frame

    def _value(self, settings: Any) -> Any:
        """Return the value as Celery's ``settings.get``, which takes 4 µs for a missing name, or an upper-case one."""
        maps = loaded_maps(settings)  # only then the prefix is known
        names = spellings(self.name, settings.prefix)
        for mapping in maps:
            for name in names:
                if name in mapping:
                    return mapping[name]
        return self.default


def loaded_maps(settings: Any) -> Any:
    """Return the dictionaries of an app's configuration, which Celery reads when a name is looked up first."""
    if len(settings.maps) == 1:
        settings.get("wheel_store")
    return settings.maps


@cache
def spellings(name: str, prefix: str | None) -> tuple[str, ...]:
    """Return the spellings under which a setting is found, the recommended one first."""
    if not prefix:  # Django's settings can have upper-case names only
        return name, name.upper()
    spelled = prefix + name
    return spelled.upper() if prefix.isupper() else spelled.lower(), name


def accepted(phrase: str, is_valid: Callable[[Any], bool]) -> Rule[Any]:
    """Return the rule that takes the values for which ``is_valid`` is true, as they are."""

    def parse(value: Any) -> Any:
        if is_valid(value):
            return value
        raise ValueError(value)

    return Rule(phrase, parse)


FLAG: Rule[bool] = accepted("True or False", lambda value: value is True or value is False)


def whole(at_least: int, at_most: int | None = None) -> Rule[int]:
    """Return the rule for a whole number in a range, both ends included."""
    upper = "" if at_most is None else f" and at most {at_most:,}"
    return accepted(
        f"a whole number of at least {at_least:,}{upper}",
        lambda value: type(value) is int and value >= at_least and (at_most is None or value <= at_most),
    )


def seconds(at_least_ms: int, whole_ms: bool = False) -> Rule[int]:
    """Return the rule for seconds (int, float or timedelta), which are read as integer milliseconds.

    A fraction of a millisecond is rounded up, or refused with ``whole_ms``.
    """

    def parse(value: Any) -> int:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(value)
        exact: float = round(value * 1000, 6)  # 0.001 * 1000 is not a whole number in binary
        if exact < at_least_ms or (whole_ms and exact != int(exact)):
            raise ValueError(value)
        return math.ceil(exact)

    unit = f"a time of at least {at_least_ms / 1000:g} s" if at_least_ms else "a time of 0 s or more"
    return Rule(f"{unit}, in whole milliseconds" if whole_ms else unit, parse)


def by_name(value: Any) -> dict[str, Any]:
    """Return a dict whose keys are names. Raises ValueError."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(value)
    return {str(name): one for name, one in value.items()}


def retentions(at_least_ms: int) -> Rule[dict[str, int]]:
    """Return the rule for seconds by queue or task, which are read as milliseconds: ``{"queue:mail": 3600}``."""
    each = seconds(at_least_ms)

    def parse(value: Any) -> dict[str, int]:
        found = by_name(value)
        for name in found:
            scope, _, of = name.partition(":")
            if scope not in ("queue", "task") or not of:
                raise ValueError(name)
        return {name: each.parse(one) for name, one in found.items()}

    return Rule(f'a dict like {{"queue:mail": 3600}}, by queue:… or task:…, each {each.phrase}', parse)


def parse_rate(value: Any) -> tuple[int, int]:
    """Return (count, milliseconds) of a rate like "500/s". Raises ValueError."""
    text = f"{value}/s" if type(value) is int else value
    found = re.fullmatch(r"([1-9][0-9]{0,8})/([smh])", text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(value)
    return int(found[1]), {"s": 1_000, "m": 60_000, "h": 3_600_000}[found[2]]


#: Rates by name, as Celery writes them: ``{"mail": "500/s"}`` is ``{"mail": (500, 1000)}``.
RATES = Rule(
    'a dict of rates like {"queue or task": "500/s"}, with /s, /m or /h',
    lambda value: {name: parse_rate(rate) for name, rate in by_name(value).items()},
)


def one_of(*choices: str) -> Rule[str]:
    phrase = " or ".join(repr(choice) for choice in choices)
    return accepted(phrase, lambda value: isinstance(value, str) and value in choices)


def matching(pattern: str, phrase: str) -> Rule[str]:
    """Return the rule for a text that ``pattern`` matches as a whole."""
    compiled = re.compile(pattern)
    return accepted(phrase, lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None)


def _address(value: Any) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host) != bracketed or not re.fullmatch(r"[1-9][0-9]{0,4}", port):
        raise ValueError(value)
    if int(port) > 65_535:
        raise ValueError(value)
    return host.strip("[]"), int(port)


#: The address of a server: host and port. An address of IPv6 is in brackets.
ADDRESS = Rule("an address like '127.0.0.1:9808', or None", _address)


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple | set | frozenset) and all(isinstance(one, str) and one for one in value):
        return tuple(sorted(value))
    raise ValueError(value)


#: Several names; a single text is a list that lacks its brackets.
NAMES = Rule("a list of names, like ['password', 'token']", _names)


def secrets(package: str | None = None) -> Rule[tuple[str, ...]]:
    """Return the rule for the secrets of keys; "" as the first one: nothing new is encrypted or signed.

    ``package`` must be installed where there are any.
    """

    def parse(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise ValueError(value)
        if not all(one.isprintable() and one == one.strip() for one in value):  # a file ends with a line feed
            raise ValueError(value)
        if any(len(one) < MIN_SECRET for one in value[1:]) or 0 < len("".join(value[:1])) < MIN_SECRET:
            raise ValueError(value)
        if len({*value}) < len(value):
            raise ValueError(value)
        value = found = tuple(map(Secret, value))  # no frame of an error has the secrets as they were given
        if found and package and find_spec(package) is None:
            raise PackageMissing(f"wheel_encryption_keys needs {package}; run: pip install 'celery-wheel[encryption]'")
        return found

    return Rule(
        f"a list of different random texts of at least {MIN_SECRET} characters without spaces or line feeds at their "
        "ends, the current one first",
        parse,
    )


#: Stands, in ``wheel_destinations``, for the queues and exchanges of the app's own settings.
OWN_DESTINATIONS = "@app"


def _destinations(value: Any) -> tuple[str, ...] | None:
    found = None if value is None else _names(value)
    # An empty list would have every task rejected.
    if found == () or any(one.startswith("@") and one != OWN_DESTINATIONS for one in found or ()):
        raise ValueError(value)
    return found


#: Patterns of queues and exchanges.
DESTINATIONS = Rule(
    f"None, or a list of patterns of queues and exchanges, like ['mail', 'tenant-*']; {OWN_DESTINATIONS!r} stands for "
    "those of the app",
    _destinations,
)


def _folder(value: Any) -> Path | None:
    if value is None or (isinstance(value, str | os.PathLike) and Path(value).is_absolute()):
        return value if value is None else Path(value)
    raise ValueError(value)


#: An absolute path, since web processes start in any folder; the folder need not exist.
FOLDER = Rule("the absolute path of a folder, like /var/lib/wheel, or None", _folder)

_is_path = re.compile(r"[^\W\d]\w*([.:][^\W\d]\w*)+").fullmatch

#: A function, or its dotted path, whose module is imported when the function is called.
FUNCTION = accepted(
    "a function, its dotted path like 'proj.groups.of', or None",
    lambda value: value is None or callable(value) or (isinstance(value, str) and _is_path(value) is not None),
)

#: A class, or its import path as Celery writes it: ``package.module:Class``.
SCHEDULER = accepted(
    "a scheduler class or its import path",
    lambda value: isinstance(value, type) or (isinstance(value, str) and bool(value.strip())),
)
