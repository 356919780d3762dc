"""The scheduler: ``celery -A proj beat -S wheel``, or ``beat_scheduler = "wheel"``.

::

    celery beat ── tick() ──► WheelMixin ──► the base scheduler (periodic entries, as ever)
                                  │          only while this process holds shard 0
                                  └── WheelService: the engine's threads, with connections of their own

Any number of schedulers may run. One holds the shard; the others stand by, and send no periodic entry either:
a standby sets the base scheduler up when it takes over, and so goes on from what the former holder has saved.

The file of the base scheduler (``celerybeat-schedule``) may be damaged by then. It is moved aside, with a
line in the log, and the periodic entries count from now: a scheduler that ended instead would end at every start.

The threads start with the first ``tick``: the instance that beat makes for its banner (``lazy``) has none, and a
process that forks before has none to lose. ``close`` may come at any moment, twice, from a signal handler.
"""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from celery.beat import PersistentScheduler
from celery.utils.imports import symbol_by_name

from celery_wheel.app import WheelApp
from celery_wheel.conf import Conf
from celery_wheel.errors import WheelError
from celery_wheel.service import WheelService
from celery_wheel.store.place import read_url

logger = logging.getLogger(__name__)

#: A tick returns at least this often, so that an engine's failure and a takeover are seen soon.
MAX_TICK_S = 0.5

#: What Celery writes into a schedule file.
KEYS = frozenset(("entries", "tz", "utc_enabled", "__version__"))

#: What the kinds of dbm below ``shelve`` append to its name.
SUFFIXES = (*PersistentScheduler.known_suffixes, ".pag", "-journal", "-shm", "-wal")


class StartRefused(WheelError, click.ClickException):
    """The scheduler cannot start; the command line prints why and exits with 1."""


if TYPE_CHECKING:

    class _Base:
        """What the mixin uses of a Celery scheduler; celery carries no types."""

        app: Any
        info: str
        _heap: Any
        schedule_filename: str
        persistence: Any

        def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None: ...
        def setup_schedule(self) -> None: ...
        def tick(self, *args: Any, **kwargs: Any) -> float | None: ...
        def should_sync(self) -> bool: ...
        def close(self) -> None: ...

else:
    _Base = object


class WheelMixin(_Base):
    """Goes before a scheduler class of Celery's."""

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._service = WheelService(app)
        self._periodic = False  #: the base scheduler is set up
        self._closing = False
        if not isinstance(app, WheelApp):
            logger.warning(
                "this app is a plain Celery: its delayed tasks wait in workers; use celery_wheel.Celery or "
                "celery_wheel.install(app)",
                extra={"action": "not_installed"},
            )
        try:
            self._service.check()
        except WheelError as error:
            raise StartRefused(str(error)) from error
        # The base is set up only while this process holds the shard; see the module's header.
        super().__init__(app, *args, lazy=True, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float | None:
        """Serve beat: periodic entries while holding, and the engine's failure, if there was one."""
        if not self._service.started:
            self._service.start()
        self._service.raise_failure()
        holds = self._service.holds(0)
        if holds != self._periodic:
            self._set_periodic(holds)
        if not holds:
            return MAX_TICK_S
        wait_s = super().tick(*args, **kwargs)
        return min(wait_s, MAX_TICK_S) if wait_s else wait_s

    def _set_periodic(self, on: bool) -> None:
        self._periodic = on
        if on:
            self._heap = None  # another holder may have run entries since: their times are in the schedule anew
            if isinstance(self, PersistentScheduler):
                set_aside_if_unusable(self.schedule_filename, self.persistence)
            self.setup_schedule()
        else:
            super().close()

    def should_sync(self) -> bool:
        return self._periodic and super().should_sync()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._service.stop()
        if self._periodic:
            super().close()

    @property
    def info(self) -> str:  # type: ignore[override]  # a property in Celery's class as well
        """Lines for the banner."""
        conf = Conf(self.app)
        url = read_url(conf.store).difference_update_query(("password", "sslpassword", "options"))
        store = url.render_as_string(hide_password=True)
        return f"    . wheel -> {store} (namespace {conf.namespace})\n{super().info}"


def set_aside_if_unusable(path: str, shelve: Any) -> None:
    """Rename a schedule file that Celery could not go on from, with its siblings. Raises OSError if that fails."""
    found = [suffix for suffix in SUFFIXES if os.path.lexists(path + suffix)]
    if not found:
        return
    try:
        with shelve.open(path, flag="r") as stored:
            _check_stored(dict(stored))
    except Exception as error:
        aside = f"{path}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for suffix in found:
            os.replace(path + suffix, aside + suffix)
        logger.error(
            "beat: the schedule file %s cannot be used (%s: %s) and was moved to %s; when each periodic entry last ran "
            "is lost: intervals count from now, and what became due while no scheduler ran is not made up for",
            path,
            type(error).__name__,
            error,
            aside,
            extra={"action": "schedule_set_aside", "path": path, "aside": aside},
        )


def _check_stored(stored: dict[str, Any]) -> None:
    """Raise for what would end Celery's scheduler, or keep an entry from ever being due."""
    if missing := KEYS - stored.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if not isinstance(stored["utc_enabled"], bool):
        raise TypeError(f"utc_enabled must be True or False, got {stored['utc_enabled']!r}")
    for name, entry in stored["entries"].items():
        if not isinstance(entry.last_run_at, datetime) or not isinstance(entry.total_run_count, int):
            raise TypeError(f"entry {name!r} must have a time and a count, got {entry.last_run_at!r}")


class WheelScheduler:
    """Makes the scheduler for an app: ``WheelMixin`` over the class that ``wheel_base_scheduler`` names."""

    def __new__(cls, app: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            name = Conf(app).base_scheduler
            base = symbol_by_name(name)
        except WheelError as error:
            raise StartRefused(str(error)) from error
        except (ImportError, AttributeError) as error:
            raise StartRefused(f"wheel_base_scheduler must be the path of a class, got {name!r} ({error})") from error
        return type("WheelScheduler", (WheelMixin, base), {"__module__": __name__})(app, *args, **kwargs)
