"""Schedules of another system: where they are, their definitions or the reason of none, and how they are stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.schedules import ParseException

from celery_wheel import recurring
from celery_wheel.errors import RecurrenceError, SettingError, WheelError, import_extra
from celery_wheel.recurring.definition import read_definition, to_text
from celery_wheel.scheduler.sources.follower import schedules_named
from celery_wheel.values import parts
from celery_wheel.values.text import text_rule

if TYPE_CHECKING:
    from celery_wheel.control import Wheel
    from celery_wheel.requests.results import ScheduleAnswer
    from celery_wheel.store.ports import FullStore


#: A link to the host's zone; a host without this link needs ``--zone``.
LOCALTIME = Path("/etc/localtime")


@dataclass(frozen=True, slots=True)
class ImportOptions:
    app: Any
    url: str = ""  #: of the other system's Redis or database; by default what the system itself would use
    file: Path | None = None  #: a crontab
    task: str = ""  #: crontab: the task that runs command lines
    zone: str = ""  #: of cron fields that name none; by default that of this host
    system: bool = False  #: crontab: lines name a user before the command, as in /etc/crontab
    tasks: Mapping[str, str] = field(default_factory=dict)  #: function of the other system → task
    trusted: bool = False  #: open pickles, which run code

    @property
    def local_zone(self) -> str:
        """The zone of this host, unless ``zone`` is given. Raises SettingError where the host's has no name."""
        if self.zone:
            return self.zone
        if found := os.environ.get("TZ", "").lstrip(":"):
            return found
        _, _, name = str(LOCALTIME.resolve()).partition("/zoneinfo/")
        if not name:
            raise SettingError(f"the time zone of this host must have a name, got {LOCALTIME}; name one with --zone")
        return name

    def task_of(self, function: str) -> str:
        """Return the task for a function of the other system: named by the user, or a task of the app.

        Raises NotImportable where there is neither.
        """
        if function in self.tasks:
            return self.tasks[function]
        name = function.replace(":", ".")
        self.app.loader.import_default_modules()
        if name not in self.app.tasks:
            raise NotImportable(f"no task of the app is called {name}; name one: --map {function}=<task>")
        return name

    @contextmanager
    def redis(self, url: str) -> Iterator[Any]:
        """Yield a client of the Redis at a URL, whose answers are bytes. Raises PackageMissing, SettingError."""
        redis = import_extra("redis", "redis", "reading a Redis needs")
        try:
            client = redis.Redis.from_url(self.url or url, decode_responses=False)
        except ValueError as error:
            raise SettingError(f"--url must be the URL of a Redis, got {(self.url or url)!r:.60} ({error})") from error
        try:
            yield client
        except redis.RedisError as error:
            raise SettingError(
                f"the Redis at {self.url or url} must answer, got {error}; name it with --url"
            ) from error
        finally:
            client.close()


#: Errors that values of wrong types, and numbers out of any range, raise in the reader of an entry.
UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, RecursionError),
    ParseException,  # of Celery's crontab
)


class NotImportable(WheelError):
    """A schedule of another system has no counterpart here; the text says why."""


@dataclass(frozen=True, slots=True)
class ForeignSchedule:
    name: str
    definition: dict[str, Any] | None = None
    reason: str = ""  #: the reason of no definition, or a difference from the other system
    paused: bool = False

    @property
    def text(self) -> str:
        return to_text(self.definition)

    @classmethod
    def refused(cls, name: str, reason: object) -> ForeignSchedule:
        return cls(name, None, str(reason))

    @classmethod
    def of(
        cls,
        name: str,
        recurrence: recurring.Recurrence,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        paused: bool = False,
        note: str = "",
        **policies: Any,
    ) -> ForeignSchedule:
        """Return a schedule with its definition checked; one that is refused here has the reason instead."""
        parts = {"args": list(args), "kwargs": dict(kwargs or {})}
        parts["options"] = {option: value for option, value in (options or {}).items() if value is not None}
        definition = {"recurrence": recurring.to_json(recurrence), "task": task}
        definition |= {part: value for part, value in parts.items() if value} | policies
        found = cls(name, definition, note, paused)
        if rule := text_rule(name):
            return cls.refused(name, f"its name must be {rule}")
        try:
            found.text  # noqa: B018 - checks it
        except RecurrenceError as error:
            return cls.refused(name, error)
        except (TypeError, ValueError) as error:
            return cls.refused(name, f"its arguments must be values of JSON ({error})")
        return found


def existing(store: FullStore, names: Sequence[str]) -> set[str]:
    return {name for part in parts(names, 500) for name in schedules_named(store, part)}


def store_schedules(
    wheel: Wheel, schedules: Iterable[ForeignSchedule], now_ms: int, *, update: bool, how: Mapping[str, Any]
) -> dict[str, ScheduleAnswer]:
    """Create schedules, or with ``update`` give existing ones the definition. Raises WheelUnavailable, with results."""
    found = list(schedules)
    names = existing(wheel.store, [one.name for one in found])
    new = {one.name: _restorable(one, now_ms) for one in found if one.name not in names}
    old = {one.name: one.definition for one in found if one.name in names} if update else {}
    answers: dict[str, ScheduleAnswer] = wheel.schedules.change("restore", new, how=how) if new else {}
    return answers | (wheel.schedules.change("put", old, how=how) if old else {})


def _restorable(one: ForeignSchedule, now_ms: int) -> dict[str, Any]:
    next_ms = read_definition(one.text).recurrence.next_after(now_ms)
    values: dict[str, Any] = {"definition": one.text, "next_ms": next_ms}
    if one.paused:
        values |= {"paused": True, "note": "it was disabled in the other system", "since_ms": now_ms}
    return {"schedule": values, "revisions": []}
