"""All settings of celery-wheel, in one table.

``Conf(app)`` reads ``app.conf`` at each use: ``wheel_lease`` is ``CELERY_WHEEL_LEASE`` under ``namespace="CELERY"``,
and also ``WHEEL_LEASE`` without a namespace, where Django's settings have upper-case names only. The app's own defaults
stay unchanged, since added defaults override a user's values. Users write seconds, the code uses integer milliseconds.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from celery_wheel.conf import limits as group_limits
from celery_wheel.conf import setting as rules
from celery_wheel.conf import store as stores
from celery_wheel.conf.setting import Setting, loaded_maps, spellings
from celery_wheel.errors import SettingError

MIB = 2**20

#: Celery's own default, for projects without django-celery-beat.
PLAIN_SCHEDULER = "celery.beat:PersistentScheduler"

#: The name of ``beat_scheduler`` beside Celery's old names of settings, which Celery does not let mix with new ones.
OLD_BEAT_SCHEDULER = "CELERYBEAT_SCHEDULER"

#: Apps whose settings were read as a whole, and are valid.
_checked = WeakSet[Any]()


def _django_settings() -> Any:
    """Return the settings of this process's Django project; None without one."""
    # Django reads them when they are used first. Celery imports ``django.conf`` where DJANGO_SETTINGS_MODULE is set.
    django_conf = sys.modules.get("django.conf")
    if django_conf is None:
        return None
    return django_conf.settings if django_conf.settings.configured or "DJANGO_SETTINGS_MODULE" in os.environ else None


def in_django() -> bool:
    """Whether this process has the settings of a Django project."""
    return _django_settings() is not None


def default_base_scheduler(app: Any = None) -> str:
    """Return django-celery-beat's scheduler in a Django project that lists it, else Celery's own."""
    apps = getattr(_django_settings(), "INSTALLED_APPS", ())
    if any(str(one).partition(".")[0] == "django_celery_beat" for one in apps):
        return "django_celery_beat.schedulers:DatabaseScheduler"
    return PLAIN_SCHEDULER


def default_store(app: Any) -> str:
    """Return the SQLite file of the project, whatever the working folder; see ``celery_wheel.conf.store``."""
    return f"sqlite:///{stores.default_file(app, _django_settings())}"


class Conf:
    """The settings of one app, read and validated at each access."""

    store = Setting(
        default_store,
        stores.STORE_URL,
        "The URL of the store: a SQLite file, a PostgreSQL database, or django://default; see "
        "docs/install.md#where-pending-tasks-are-stored.",
        secret=True,
    )
    namespace = Setting(
        "wheel",
        rules.matching(r"[A-Za-z0-9._-]{1,100}", "1 to 100 letters, digits, '.', '_' or '-'"),
        "The first part of every name that celery-wheel uses in the broker.",
    )
    queue_type = Setting(
        "classic",
        rules.one_of("classic", "quorum"),
        'The type of the wheel queues on RabbitMQ, in every process; for "quorum" see docs/brokers.md.',
    )
    shards = Setting(
        1,
        rules.whole(1, 256),
        "The store's number of shards, each with its own queue, holder and order; `wheel reshard` changes it.",
    )
    processes = Setting(
        1,
        rules.whole(1, 256),
        "The processes among which one `celery beat` divides the shards; see docs/install.md#more-cores.",
    )
    tick_ms = Setting(
        0.001, rules.seconds(1, whole_ms=True), "The wheel's tick in seconds; due times are rounded up to it."
    )
    size = Setting(512, rules.whole(2), "The number of buckets on each level of the wheel.")
    enabled = Setting(True, rules.FLAG, "False sends every delayed task as Celery itself would.")
    min_delay_ms = Setting(0, rules.seconds(0), "Celery itself delays tasks by fewer seconds than this.")
    transactional = Setting(
        False,
        rules.FLAG,
        "True schedules delayed tasks in the caller's own Django transaction; see docs/transactional.md.",
    )
    group = Setting(
        None,
        rules.FUNCTION,
        "A function that names the group of a call without one: `of(task, args, kwargs, options)`; see docs/tasks.md.",
    )
    inherit_group = Setting(
        True, rules.FLAG, "True gives a task that is sent from within a task of a group the same group."
    )
    window_ms = Setting(300, rules.seconds(1_000), "The seconds ahead for which the wheel holds messages in memory.")
    window_count = Setting(100_000, rules.whole(1), "The most messages that the wheel holds in memory.")
    window_bytes = Setting(64 * MIB, rules.whole(1), "The most bytes of messages that the wheel holds in memory.")
    chunk = Setting(1_000, rules.whole(1, 1_000), "The most messages in one publish to the broker.")
    durability = Setting(
        "disk",
        rules.one_of("disk", "memory"),
        '"disk" accepts a message when it is on disk (fsync); "memory" leaves that to the operating system.',
    )
    history_retention_ms = Setting(
        7 * 86_400,
        rules.seconds(3_600_000),
        "The seconds for which a dispatched message stays in the history; at least one hour.",
    )
    retention = Setting(
        {},
        rules.retentions(3_600_000),
        "Shorter retentions in seconds, by queue or task: `{'queue:mail': 3600, 'task:app.report': 86400}`.",
    )
    history_max_bytes = Setting(10 * 1024 * MIB, rules.whole(1), "The most bytes of history.")
    history_archive = Setting(
        False,
        rules.FLAG,
        "True keeps history of any age and size until the job `archive` has it; see docs/pipeline-jobs.md.",
    )
    max_message_bytes = Setting(
        8 * MIB,
        rules.whole(1),
        "A larger message is rejected, and stored with its bytes; if it is four times as large, with its beginning.",
    )
    max_clock_skew_ms = Setting(
        5,
        rules.seconds(1),
        "A scheduler whose clock differs by more seconds than this from the broker's holds no shard; see "
        "docs/promises.md#never-early.",
    )
    lease_ms = Setting(
        2.0,
        rules.seconds(100),
        "A scheduler on PostgreSQL loses its shards after so many silent seconds; on SQLite the kernel frees them.",
    )
    poll_interval_ms = Setting(
        0.05,
        rules.seconds(1),
        "The seconds between two looks at a wheel queue or an inbox that does not announce messages.",
    )
    on_broker_rollback = Setting(
        "replay",
        rules.one_of("replay", "warn"),
        'When the broker lost confirmed messages: "replay" publishes them again, "warn" only reports the loss.',
    )
    rollback_window_ms = Setting(300, rules.seconds(0), "The most seconds of messages that a replay publishes again.")
    rate_limits = Setting(
        {},
        rules.RATES,
        'The highest rates of dispatch, by queue or task: `{"emails": "500/s", "app.tasks.heavy": "10/m"}`; see '
        "docs/tasks.md#pausing-and-limiting.",
    )
    limits = Setting(
        {},
        group_limits.CLASSES,
        "The limits of each group of a class: `{'tenant': {'concurrency': 5, 'rate': '100/m'}}`; see docs/groups.md.",
    )
    queue_depth = Setting(
        {},
        group_limits.DEPTHS,
        "The most ready messages by queue, `{'mail': 500}`: the rest waits in the wheel, and groups share the queue.",
    )
    destinations = Setting(
        None,
        rules.DESTINATIONS,
        "The queues and exchanges to which tasks may be dispatched, as patterns: `['@app', 'tenant-*']`; None: all, or "
        "`['@app']` if `task_create_missing_queues` is False. See docs/tasks.md.",
    )
    base_scheduler = Setting(
        default_base_scheduler,
        rules.SCHEDULER,
        "The beat scheduler of entries that the wheel does not run; django-celery-beat's where it is installed.",
    )
    periodic = Setting(
        "wheel",
        rules.one_of("wheel", "base"),
        '"wheel" makes schedules of periodic entries, "base" leaves them to the base scheduler; see docs/periodic.md.',
    )
    control = Setting(
        True,
        rules.FLAG,
        "True makes the scheduler a node of Celery's remote control; see docs/control-celery.md.",
    )
    metrics = Setting(
        None,
        rules.ADDRESS,
        "The address on which the scheduler serves metrics and health, like '127.0.0.1:9808'; see docs/metrics.md.",
    )
    objective_ms = Setting(
        30,
        rules.seconds(1),
        "The lateness in seconds up to which a scheduler is ready, for its page /readyz; see docs/health.md.",
    )
    opentelemetry = Setting(
        False,
        rules.FLAG,
        "True gives the scheduler's metrics and the spans of its publishes to OpenTelemetry; see docs/metrics.md.",
    )
    keep_eta = Setting(
        False, rules.FLAG, "True keeps the eta in a dispatched message, for tasks that read `request.eta`."
    )

    rescue = Setting(
        False,
        rules.FLAG,
        "True makes workers forward eta messages of other producers to the wheel; see docs/leaving.md#adopting.",
    )
    rescue_after_ms = Setting(
        1, rules.seconds(0), "A worker itself delays messages that are due within so many seconds."
    )

    look_ahead_ms = Setting(
        2,
        rules.seconds(0),
        "The seconds from an occurrence's acceptance to its instant: more in a herd, none where runs must not overlap.",
    )
    mask = Setting(
        (),
        rules.NAMES,
        "The names of arguments and headers whose values no page, command or error shows; see docs/permissions.md.",
    )
    encryption_keys = Setting(
        (),
        rules.secrets("cryptography"),
        "The secrets that encrypt stored and waiting messages, the current one first; see docs/encryption.md.",
        secret=True,
    )
    signing_keys = Setting(
        (),
        rules.secrets(),
        "The secrets by which messages for the scheduler are signed, the current one first; see docs/encryption.md.",
        secret=True,
    )
    unsigned = Setting(
        "count",
        rules.one_of("accept", "count", "refuse"),
        'With `wheel_signing_keys`, a message without a signature: "count" reports it too, "refuse" rejects it.',
    )
    audit_retention_ms = Setting(
        90 * 86_400,
        rules.seconds(3_600_000),
        "The seconds for which the audit log keeps a request; at least one hour. See docs/permissions.md.",
    )
    audit_programs = Setting(
        True,
        rules.FLAG,
        "False leaves the tasks that programs cancel, move and complete out of the audit log; see docs/permissions.md.",
    )
    results = Setting(
        None,
        rules.FOLDER,
        "The folder of the results `lateness` and `forecast` for the admin; see docs/pipeline-jobs.md.",
    )

    def __init__(self, app: Any) -> None:
        self.app = app

    def check(self) -> None:
        """Read every setting. Raises SettingError, which names each invalid or unknown setting."""
        problems = [str(problem) for problem in self.problems()]
        if problems:
            raise SettingError("\n".join(problems))

    def check_once(self) -> None:
        """Read every setting at the first use of an app, which a sender cannot do at each call."""
        if self.app not in _checked:
            self.check()
            _checked.add(self.app)

    def problems(self) -> Iterator[SettingError]:
        """Yield an error for each invalid or unknown setting."""
        for setting in _all():
            try:
                setting.__get__(self, Conf)
            except SettingError as error:
                yield error
        yield from self._unknown()

    def spelling(self, name: str) -> str:
        """Return the name under which this app's configuration has a setting of the wheel, or ``beat_scheduler``."""
        settings = self.app.conf
        maps = loaded_maps(settings)
        if settings.prefix:
            return spellings(name, settings.prefix)[0]
        of_django = any(type(getattr(one, "obj", None)).__module__ == "django.conf" for one in maps)
        if name == "beat_scheduler" and (of_django or settings.deprecated_settings):
            return OLD_BEAT_SCHEDULER
        return name.upper() if of_django else name

    def spelled(self, text: str) -> str:
        """Return a text for people with the names of settings as this app's configuration has them."""
        names = _names() | {"broker_url", "broker_transport_options"}
        return re.sub(
            r"\b(?:wheel|broker)_[a-z_]+",
            lambda found: self.spelling(found[0]) if found[0] in names else found[0],
            text,
        )

    def ignored(self) -> Iterator[tuple[str, str]]:
        """Yield a sentence and its remedy for each name, perhaps of another package, that this app does not read."""
        settings = self.app.conf
        loaded_maps(settings)
        prefix = settings.prefix
        for given in sorted(map(str, settings.keys())) if prefix else ():
            name = given.removeprefix("CELERY_").lower()
            if given.isupper() and name in _names() and given not in spellings(name, prefix):
                namespace = prefix.rstrip("_")
                yield (
                    f"{given} has no effect: the Celery app {self.app.main!r} reads its settings with "
                    f"namespace={namespace!r}",
                    f"Rename it to {spellings(name, prefix)[0]}.",
                )

    def _unknown(self) -> Iterator[SettingError]:
        """Yield an error for each name that begins like a setting of celery-wheel and is none."""
        known = _names()
        prefix = self.app.conf.prefix or ""
        for spelling in sorted(map(str, self.app.conf.keys())):
            name = spelling.removeprefix(prefix or "CELERY_").lower()  # CELERY_WHEEL_… of an app without a namespace
            if not name.startswith("wheel_") or (name in known and spelling in spellings(name, prefix)):
                continue
            if prefix and not spelling.startswith((prefix, "wheel_")):
                continue  # WHEEL_SIZE beside CELERY_… in a project's settings: see ``ignored``
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            meant = spellings(nearest, prefix)[1 if not prefix and spelling.isupper() else 0]
            yield SettingError(f"{spelling} is an unknown setting and has no effect; did you mean {meant}?")


def _all() -> Iterator[Setting[Any]]:
    return (value for value in vars(Conf).values() if isinstance(value, Setting))


def _names() -> set[str]:
    return {setting.name for setting in _all()}


def settings() -> Iterator[tuple[str, Any, str]]:
    """Yield (name, default, docstring) of every setting, in the order of the table in docs/settings.md."""
    plain = {default_base_scheduler: PLAIN_SCHEDULER, default_store: f"sqlite:///…/{stores.FILE}"}
    for setting in _all():
        default = plain[setting.default] if callable(setting.default) else setting.default
        yield setting.name, default, setting.__doc__ or ""


@contextmanager
def explained_names() -> Iterator[None]:
    """Add the name of the wheel's line to Celery's error about a mixture."""
    from celery.exceptions import ImproperlyConfigured  # a query reads settings without Celery

    try:
        yield
    except ImproperlyConfigured as error:
        if not str(error).strip().startswith("Cannot mix new "):
            raise
        raise ImproperlyConfigured(
            f'{str(error).rstrip()}\n\nWith old names, the scheduler is {OLD_BEAT_SCHEDULER} = "wheel" and not '
            "beat_scheduler. Settings of the wheel have no old names: they are wheel_store or WHEEL_STORE.\n"
        ) from error
