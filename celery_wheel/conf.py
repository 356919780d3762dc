"""All settings of celery-wheel, in one table.

``Conf(app)`` reads ``app.conf`` late: under ``namespace="CELERY"``, ``wheel_lease`` is ``CELERY_WHEEL_LEASE``. Nothing
is ever added to the app's own defaults: that was seen to override what the user had set.

Seconds at the edge, integer milliseconds inside: ``wheel_lease = 2.0`` is read as ``conf.lease_ms == 2000``.
A setting's docstring is its line in the README; ``settings()`` yields what the README's table shows.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery_wheel.errors import SettingError
from celery_wheel.setting import Setting, flag, folder, matching, one_of, rates, scheduler, seconds, whole

MIB = 2**20
GIB = 2**30

#: Celery's own default, where django-celery-beat is not installed.
PLAIN_SCHEDULER = "celery.beat:PersistentScheduler"


#: The file of a store that nobody named.
PLAIN_STORE = "sqlite:///celery-wheel.sqlite3"


def _django_settings() -> Any:
    """The settings of the Django project that runs here; None where Django was not imported."""
    django_conf = sys.modules.get("django.conf")
    return django_conf.settings if django_conf is not None and django_conf.settings.configured else None


def _installed(project: Any, name: str) -> bool:
    return any(str(app).partition(".")[0] == name for app in getattr(project, "INSTALLED_APPS", ()))


def default_base_scheduler() -> str:
    """django-celery-beat's scheduler in a Django project that lists it, else Celery's own."""
    if _installed(_django_settings(), "django_celery_beat"):
        return "django_celery_beat.schedulers:DatabaseScheduler"
    return PLAIN_SCHEDULER


def default_store() -> str:
    """A file in the project's folder where a Django project lists django_wheel: its web processes read it too."""
    project = _django_settings()
    folder = getattr(project, "BASE_DIR", None) if _installed(project, "django_wheel") else None
    return PLAIN_STORE if folder is None else f"sqlite:///{Path(folder).absolute() / 'celery-wheel.sqlite3'}"


class Conf:
    """The settings of one app, each read when it is asked for and valid when it is returned."""

    store = Setting(
        default_store,
        matching(r"\S+://.*", "a database URL like sqlite:////var/lib/wheel/wheel.sqlite3"),
        "Where waiting messages are kept: the URL of a SQLite file or of a PostgreSQL database, or django://default.",
        secret=True,
    )
    namespace = Setting(
        "wheel",
        matching(r"[A-Za-z0-9._-]{1,100}", "1 to 100 letters, digits, '.', '_' or '-'"),
        "The first part of every name that celery-wheel uses in the broker.",
    )
    shards = Setting(
        1,
        whole(1, 256),
        "How many shards the store has, each with its own queue, holder and order. `celery wheel reshard` changes it.",
    )
    tick_ms = Setting(
        0.001,
        seconds(1, whole_ms=True),
        "Seconds of the wheel's finest step; due times are rounded up to it.",
    )
    size = Setting(512, whole(2), "Buckets on each level of the wheel.")
    enabled = Setting(True, flag(), "False sends every delayed task as Celery itself would.")
    min_delay_ms = Setting(0, seconds(0), "A delay of fewer seconds than this is left to Celery itself.")
    transactional = Setting(
        False,
        flag(),
        "True schedules delayed tasks in the caller's own Django transaction; wheel_store is a django://… then.",
    )
    window_ms = Setting(300, seconds(1_000), "How many seconds ahead the wheel holds messages in memory.")
    window_count = Setting(100_000, whole(1), "How many messages the wheel holds in memory at most.")
    window_bytes = Setting(64 * MIB, whole(1), "How many bytes of messages the wheel holds in memory at most.")
    chunk = Setting(1_000, whole(1, 1_000), "How many messages go to the broker in one publish at most.")
    durability = Setting(
        "disk",
        one_of("disk", "memory"),
        '"disk" accepts a message when it is on disk (fsync); "memory" leaves that to the operating system.',
    )
    history_retention_ms = Setting(
        7 * 86_400,
        seconds(3_600_000),
        "How many seconds a dispatched message stays in the history; one hour at least.",
    )
    history_max_bytes = Setting(10 * GIB, whole(1), "How many bytes of history are kept at most.")
    history_archive = Setting(
        False,
        flag(),
        "True keeps history, however old and large, until the job `archive` has it; see docs/pipeline-jobs.md.",
    )
    max_message_bytes = Setting(8 * MIB, whole(1), "A larger message is set aside as rejected, with its bytes.")
    max_clock_skew_ms = Setting(
        5,
        seconds(1),
        "A scheduler whose due time is more seconds than this away from the broker's clock holds no shard.",
    )
    lease_ms = Setting(
        2.0,
        seconds(100),
        "On PostgreSQL a scheduler that is silent for so many seconds loses its shards; on a file the kernel tells.",
    )
    poll_interval_ms = Setting(0.05, seconds(1), "Seconds between two looks into an empty wheel queue.")
    on_broker_rollback = Setting(
        "replay",
        one_of("replay", "warn"),
        'When the broker has lost messages that it had taken: "replay" sends them again, "warn" only reports it.',
    )
    rollback_window_ms = Setting(300, seconds(0), "How many seconds of messages a replay sends again at most.")
    rate_limits = Setting(
        {},
        rates(),
        'How fast tasks leave at most, by queue or task: `{"emails": "500/s", "app.tasks.heavy": "10/m"}`.',
    )
    base_scheduler = Setting(
        default_base_scheduler,
        scheduler(),
        "The beat scheduler that runs the periodic entries; django-celery-beat's where that is installed.",
    )
    control = Setting(
        True,
        flag(),
        "The scheduler is a node of Celery's remote control: revoke, inspect and Flower reach what waits.",
    )
    keep_eta = Setting(False, flag(), "True leaves the eta in a released message, for tasks that read `request.eta`.")

    rescue = Setting(False, flag(), "True lets workers hand eta messages of other producers over to the wheel.")
    rescue_after_ms = Setting(1, seconds(0), "A worker itself holds what is due within so many seconds.")

    results = Setting(
        None,
        folder(),
        "The folder in which the pipeline's jobs leave `lateness` and `forecast`, for the admin to show.",
    )

    def __init__(self, app: Any) -> None:
        self.app = app

    def check(self) -> None:
        """Read every setting. Raises SettingError naming each that makes no sense, or does not exist."""
        problems = [str(problem) for problem in self.problems()]
        if problems:
            raise SettingError("\n".join(problems))

    def problems(self) -> Iterator[SettingError]:
        """What is wrong with the settings, one error each."""
        for setting in _all():
            try:
                setting.__get__(self, Conf)
            except SettingError as error:
                yield error
        yield from self._unread()

    def _unread(self) -> Iterator[SettingError]:
        """Settings that look like ours, but that nothing reads: misspelt, or written in the wrong case."""
        known = {setting.name for setting in _all()}
        prefix = self.app.conf.prefix or ""
        for spelling in sorted(map(str, self.app.conf.keys())):
            name = spelling.removeprefix(prefix).lower()
            if not name.startswith("wheel_") or (name in known and spelling in _read_as(name, prefix)):
                continue
            if prefix and not spelling.startswith((prefix, "wheel_")):
                continue  # WHEEL_SIZE beside CELERY_…, in a project's settings: somebody else's
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            meant = _read_as(nearest, prefix)[0]
            yield SettingError(f"{spelling} must be the name of a setting, got a name nobody reads; is it {meant}?")


def _read_as(name: str, prefix: str) -> tuple[str, ...]:
    """The spellings under which Celery finds a setting; the first is the one to recommend."""
    if not prefix:
        return (name,)
    return ((prefix + name).upper() if prefix.isupper() else prefix + name), name


def _all() -> Iterator[Setting[Any]]:
    return (value for value in vars(Conf).values() if isinstance(value, Setting))


def settings() -> Iterator[tuple[str, Any, str]]:
    """(name, default, docstring) of every setting, in the order of the README's table."""
    plain = {default_base_scheduler: PLAIN_SCHEDULER, default_store: PLAIN_STORE}
    for setting in _all():
        default = plain[setting.default] if callable(setting.default) else setting.default
        yield setting.name, default, setting.__doc__ or ""
