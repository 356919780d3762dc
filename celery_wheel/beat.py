"""The scheduler: ``celery -A proj beat -S wheel``, or ``beat_scheduler = "wheel"``.

::

    celery beat ── tick() ──► WheelMixin ──► the base scheduler (periodic entries, as ever)
                                  │          only while this process holds shard 0
                                  └── WheelService: the engine's threads, with connections of their own

Any number of schedulers may run. One holds the shard; the others stand by, and send no periodic entry either:
a standby sets the base scheduler up when it takes over, and so goes on from what the former holder has saved.

The threads start with the first ``tick``: the instance that beat makes for its banner (``lazy``) has none, and a
process that forks before has none to lose. ``close`` may come at any moment, twice, from a signal handler.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click
from celery.utils.imports import symbol_by_name

from celery_wheel.app import WheelApp
from celery_wheel.conf import Conf
from celery_wheel.errors import WheelError
from celery_wheel.service import WheelService
from celery_wheel.store.place import read_url

logger = logging.getLogger(__name__)

#: A tick returns at least this often, so that an engine's failure and a takeover are seen soon.
MAX_TICK_S = 0.5


class StartRefused(WheelError, click.ClickException):
    """The scheduler cannot start; the command line prints why and exits with 1."""


if TYPE_CHECKING:

    class _Base:
        """What the mixin uses of a Celery scheduler; celery carries no types."""

        app: Any
        info: str
        _heap: Any

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
