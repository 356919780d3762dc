"""Where another system has its schedules, and connections to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery_wheel.errors import PackageMissing, SettingError

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

    def task_of(self, function: str) -> str | None:
        """Return the task for a function of the other system: named by the user, or a task of the app."""
        if function in self.tasks:
            return self.tasks[function]
        name = function.replace(":", ".")
        self.app.loader.import_default_modules()
        return name if name in self.app.tasks else None

    @contextmanager
    def redis(self, url: str) -> Iterator[Any]:
        """Yield a client of the Redis at a URL, whose answers are bytes. Raises PackageMissing, SettingError."""
        try:
            import redis
        except ImportError as error:
            raise PackageMissing("reading a Redis needs its client: pip install 'celery-wheel[redis]'") from error
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
