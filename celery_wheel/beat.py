"""The scheduler: ``celery -A proj beat -S wheel``, or ``beat_scheduler = "wheel"``.

Any number of schedulers may run. One holds the shard; the others stand by, and send no periodic entries: a standby sets
the base scheduler up at its takeover, and so continues from the state that the former holder has saved. A takeover
renames a damaged ``celerybeat-schedule``: a scheduler that ended over it would end at every start.

The threads start with the first ``tick``: the instance that beat makes for its banner (``lazy``) has none. ``close``
may be called at any moment, twice, by a signal handler. The first of two calls that come within the start does nothing:
the thread that it interrupts may hold a lock of the stop.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import symbol_by_name

from celery_wheel.app import WheelApp, install
from celery_wheel.conf import Conf
from celery_wheel.errors import WheelError
from celery_wheel.scheduler.monitoring import warn_once
from celery_wheel.scheduler.service import WheelService
from celery_wheel.scheduler.sources.apply_entry import BeatApplyEntry
from celery_wheel.scheduler.sources.beat_entries import PeriodicEntries
from celery_wheel.scheduler.sources.django_source import FollowedTables, follows_tables
from celery_wheel.scheduler.supervisor import Supervisor
from celery_wheel.store.place import read_url
from celery_wheel.values.log import get_logger

logger = get_logger(__name__)

#: A tick returns at least this often, so that beat soon notices an engine's failure and a takeover.
MAX_TICK_S = 0.5

#: The keys of Celery's schedule file.
KEYS = frozenset(("entries", "tz", "utc_enabled", "__version__"))


class StartRefused(WheelError, click.ClickException):
    """The scheduler cannot start; the command line prints the reason and exits with 1."""


@contextmanager
def refusals(app: Any) -> Iterator[None]:
    """Raise StartRefused for an error of the wheel, with the names of settings as the app reads them."""
    try:
        yield
    except WheelError as error:
        raise StartRefused(Conf(app).spelled(str(error))) from error


_Base: Any = object  # a scheduler class of Celery, which carries no types, comes after the mixin


class WheelMixin(_Base):  # type: ignore[misc]
    """Mixed into a scheduler class of Celery: runs the engine, and the periodic entries while holding shard 0."""

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        if not lazy:  # the instance of the banner is made before there are handlers for logs
            warn_once()
        base = next(one for one in type(self).__mro__ if not issubclass(one, WheelMixin | FollowedTables))
        self._service = WheelService(app, BeatApplyEntry(base, app))
        self._supervisor = Supervisor(app, install, self._service.count_process_end)
        self._periodic = False  #: the base scheduler is set up
        self._entries: PeriodicEntries | None = None  #: while it is
        self._closing = False
        self._starting = False
        if not isinstance(app, WheelApp):
            logger.warning(
                "this app is a plain Celery: workers hold its delayed tasks, and report no ends of runs, so that the "
                "concurrency of groups ends by max_runtime alone; use celery_wheel.Celery or celery_wheel.install(app)",
                extra={"action": "not_installed"},
            )
            install(app)  # in this process: schedules are rendered by the installed app
        with refusals(app):
            self._service.check()
            self._supervisor.check()
        for problem, remedy in () if lazy else Conf(app).ignored():
            logger.warning("%s. %s", problem, remedy, extra={"action": "ignored_setting"})
        # The base is set up only while this process holds the shard; see the module's header.
        super().__init__(app, *args, lazy=True, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float | None:
        """Send the periodic entries that are due while holding shard 0; raise the engine's failure, if any."""
        self._supervisor.tend()
        if not self._service.started:
            end_on_hangup()
            self._starting = True
            try:
                with refusals(self.app):
                    self._service.start()
            finally:
                self._starting = False
        self._service.raise_failure()
        holds = self._service.holds(0)
        if holds != self._periodic:
            self._set_periodic(holds)
        if not holds:
            return MAX_TICK_S
        entries = self._entries  # a signal's handler may close this scheduler within the tick
        if entries is None:
            return super().tick(*args, **kwargs)  # type: ignore[no-any-return]
        entries.before_tick()
        wait_s: float | None = super().tick(*args, **kwargs)
        entries.after_tick()
        return min(wait_s, MAX_TICK_S) if wait_s else wait_s

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Put the entries that the base scheduler keeps on its heap."""
        super().populate_heap(*args, **kwargs)
        entries = self._entries
        if entries is not None:
            entries.sift()

    def schedules_equal(self, old: Any, new: Any) -> bool:
        """As the base scheduler's; Celery's own compares 100,000 unchanged entries field by field."""
        own = super().schedules_equal
        if getattr(own, "__func__", None) is Scheduler.schedules_equal and old is not None and new is not None:
            return bool(old == new)
        return bool(own(old, new))

    def _set_periodic(self, on: bool) -> None:
        self._periodic = on
        if on:
            self._heap = None  # another holder may have sent entries since: the schedule has their new times
            if isinstance(self, PersistentScheduler):
                rename_if_unusable(self.schedule_filename, self.persistence)
            self.setup_schedule()
            self._entries = PeriodicEntries(self, self._service)
            self._entries.start()
        else:
            self._stop_entries()
            super().close()

    def _stop_entries(self) -> None:
        entries, self._entries = self._entries, None
        if entries is not None:
            entries.stop()

    def should_sync(self) -> bool:
        return self._periodic and super().should_sync()

    def close(self) -> None:
        if self._closing or self._starting:  # Celery closes again, as the error of its signal handler leaves the tick
            return
        self._closing = True
        self._stop_entries()
        self._supervisor.terminate()
        self._service.stop()
        self._supervisor.join()
        if self._periodic:
            if isinstance(self, PersistentScheduler) and self._store is not None:
                self._store.writeback = True  # a signal within its sync leaves False, and close would save nothing
            super().close()

    @property
    def info(self) -> str:
        """The lines of beat's banner."""
        conf = Conf(self.app)
        url = read_url(conf.store).difference_update_query(("password", "sslpassword", "options"))
        store = url.render_as_string(hide_password=True)
        return f"    . wheel -> {store} (namespace {conf.namespace})\n{super().info}"


def end_on_hangup() -> None:
    """End beat on SIGHUP as on SIGTERM, unless the process ignores the signal (``nohup``) or handles it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def rename_if_unusable(path: str, shelve: Any) -> None:
    """Rename a schedule file, and its siblings, that Celery cannot use. Raises OSError if that fails."""
    # The suffixes that the kinds of dbm below ``shelve`` append to the file's name.
    suffixes = (*PersistentScheduler.known_suffixes, ".pag", "-journal", "-shm", "-wal")
    found = [suffix for suffix in suffixes if os.path.lexists(path + suffix)]
    if not found:
        return
    try:
        with shelve.open(path, flag="r") as stored:
            _check_stored(dict(stored))
    except Exception as error:
        new_path = f"{path}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for suffix in found:
            os.replace(path + suffix, new_path + suffix)
        logger.error(
            "beat: the schedule file %s cannot be used (%s: %s) and was renamed to %s; the times at which periodic "
            "entries last ran are lost: intervals count from now, and entries that became due meanwhile are skipped",
            path,
            type(error).__name__,
            error,
            new_path,
            extra={"action": "schedule_renamed", "path": path, "new_path": new_path},
        )


def _check_stored(stored: dict[str, Any]) -> None:
    """Raise for a value that would end Celery's scheduler, or prevent an entry from ever being due."""
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
        tables = (FollowedTables,) if Conf(app).periodic == "wheel" and follows_tables(base) else ()
        return type("WheelScheduler", (WheelMixin, *tables, base), {"__module__": __name__})(app, *args, **kwargs)
