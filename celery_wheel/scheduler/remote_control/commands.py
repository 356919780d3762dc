"""The commands of Celery's remote control that the node answers.

::

    pending tasks        revoke, terminate, revoke_by_stamped_headers      see ``revocation``
                         scheduled, query_task, revoked, stats             see ``inspection``
    always empty         active, reserved, registered, active_queues       the node runs no task, consumes no task queue
    the process          ping, report, conf, clock, heartbeat, enable_events, disable_events

Answers have the form of ``celery.worker.control``. All other commands are for workers: the node ignores them, unless
they name it as their destination; then it answers that it is no worker.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker import control

from celery_wheel.scheduler.remote_control import inspection
from celery_wheel.scheduler.remote_control.revocation import RevokeListener
from celery_wheel.scheduler.remote_control.view import SchedulerView

Handler = Callable[..., Any]

#: Ignored ids that an answer names.
NAMED = 5

#: The part of a worker's pool that Flower and others read.
_NO_POOL = {
    "implementation": "none",
    "max-concurrency": 0,
    "processes": [],
    "max-tasks-per-child": "N/A",
    "put-guarded-by-semaphore": False,
    "timeouts": [0, 0],
}

_USAGE = ("utime", "stime", "maxrss", "minflt", "majflt", "inblock", "oublock", "nvcsw", "nivcsw")


class Commands:
    def __init__(self, app: Any, view: SchedulerView, revokes: RevokeListener) -> None:
        self._app = app
        self._view = view
        self._revokes = revokes
        self._since = time.monotonic()
        self.connection: Any = None  #: the node's own, while it has one
        self.task_events = bool(app.conf.worker_send_task_events)
        self.beat_now = False  #: a command asked for a heartbeat

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by command; some commands have an older name as well."""
        found: dict[str, Handler] = {
            "revoke": self.revoke,
            "terminate": self.terminate,
            "revoke_by_stamped_headers": self.revoke_by_stamped_headers,
            "scheduled": lambda state, **_: inspection.scheduled(self._view),
            "query_task": lambda state, ids=(), **_: inspection.query(self._view, list(maybe_list(ids) or ())),
            "revoked": lambda state, **_: inspection.cancelled(self._view),
            "stats": self.stats,
            "ping": lambda state, **_: {"ok": "pong"},
            "report": lambda state, **_: {"ok": self._app.bugreport()},
            "conf": lambda state, with_defaults=False, **_: control.conf(state, with_defaults=with_defaults),
            "clock": lambda state, **_: {"clock": self._app.clock.value},
            "heartbeat": self.heartbeat,
            "enable_events": lambda state, **_: self._switch_events(True),
            "disable_events": lambda state, **_: self._switch_events(False),
        }
        found |= dict.fromkeys(("active", "reserved", "registered", "active_queues"), _nothing)
        older = {
            "conf": "dump_conf",
            "scheduled": "dump_schedule",
            "active": "dump_active",
            "reserved": "dump_reserved",
            "revoked": "dump_revoked",
            "registered": "dump_tasks",
        }
        return found | {old: found[name] for name, old in older.items()}

    # -- revoking --------------------------------------------------------------------------------------

    def revoke(self, state: Any, task_id: Any = (), **_: Any) -> dict[str, Any]:
        """Revoke pending tasks; they do not run, so ``terminate`` and ``signal`` are for workers."""
        ids, ignored = self._revokes.revoke(maybe_list(task_id) or ())
        text = f"tasks {', '.join(ids)} flagged as revoked"
        if ignored:
            named = ", ".join(f"{one!r:.60}" for one in ignored[:NAMED])
            text += f"; {len(ignored):,} ignored, which cannot be task ids: {named}" + " …" * (len(ignored) > NAMED)
        return {"ok": text}

    def terminate(self, state: Any, signal: Any = None, task_id: Any = (), **_: Any) -> dict[str, Any]:
        return self.revoke(state, task_id)

    def revoke_by_stamped_headers(self, state: Any, headers: Any = (), **_: Any) -> dict[str, Any]:
        if isinstance(headers, list):  # as the command line sends them
            headers = dict(one.split("=", 1) for one in headers)
        self._revokes.revoke_stamps(headers)
        return {"ok": f"headers {headers} flagged as revoked; pending tasks are scanned"}

    # -- the process -----------------------------------------------------------------------------------

    def stats(self, state: Any, **_: Any) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "total": {},
            "pid": os.getpid(),
            "clock": str(self._app.clock),
            "uptime": round(time.monotonic() - self._since),
            "pool": _NO_POOL,
            "prefetch_count": 0,
            "broker": self._broker(),
            "rusage": {name: getattr(usage, f"ru_{name}") for name in _USAGE},
            "wheel": inspection.wheel(self._view),
        }

    def _broker(self) -> dict[str, Any]:
        info: dict[str, Any] = dict(self.connection.info()) if self.connection is not None else {}
        for secret in ("password", "alternates", "transport_options"):  # each of these may contain it
            info.pop(secret, None)
        return info

    def heartbeat(self, state: Any, **_: Any) -> None:
        self.beat_now = True

    def _switch_events(self, on: bool) -> dict[str, Any]:
        before, self.task_events = self.task_events, on
        return {"ok": f"task events {'already ' if on == before else ''}{'enabled' if on else 'disabled'}"}


def _nothing(state: Any, **_: Any) -> list[Any]:
    return []
