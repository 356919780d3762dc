"""What the node does on each command of Celery's remote control, and what it answers.

::

    about what waits     revoke, terminate, revoke_by_stamped_headers      see ``revoking``
                         scheduled, query_task, revoked, stats             see ``looking``
    there is nothing     active, reserved, registered, active_queues       it runs no task, and consumes no task queue
    about the process    ping, report, conf, clock, heartbeat, enable_events, disable_events

Answers have the form of ``celery.worker.control``. Whatever else comes is for workers: the node says nothing, unless it
was asked by its name; then it says that it is no worker.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker import control

from celery_wheel.node import looking
from celery_wheel.node.revoking import Revoking
from celery_wheel.node.view import View

Handler = Callable[..., Any]

#: Ids that an answer names, of those that were ignored.
NAMED = 5

#: What Flower and others read of a worker's pool.
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
    def __init__(self, app: Any, view: View, revoking: Revoking) -> None:
        self._app = app
        self._view = view
        self._revoking = revoking
        self._since = time.monotonic()
        self.connection: Any = None  #: the node's own, while it has one
        self.task_events = bool(app.conf.worker_send_task_events)
        self.beat_now = False  #: a heartbeat was asked for

    def handlers(self) -> dict[str, Handler]:
        """By the name of the command; some have an older one, too."""
        found: dict[str, Handler] = {
            "revoke": self.revoke,
            "terminate": self.terminate,
            "revoke_by_stamped_headers": self.revoke_by_stamped_headers,
            "scheduled": lambda state, **_: looking.scheduled(self._view),
            "query_task": lambda state, ids=(), **_: looking.query(self._view, list(maybe_list(ids) or ())),
            "revoked": lambda state, **_: looking.cancelled(self._view),
            "stats": self.stats,
            "ping": lambda state, **_: {"ok": "pong"},
            "report": lambda state, **_: {"ok": self._app.bugreport()},
            "conf": lambda state, with_defaults=False, **_: control.conf(state, with_defaults=with_defaults),
            "clock": lambda state, **_: {"clock": self._app.clock.value},
            "heartbeat": self.heartbeat,
            "enable_events": lambda state, **_: self._switch_events(True),
            "disable_events": lambda state, **_: self._switch_events(False),
        }
        for name in ("active", "reserved", "registered", "active_queues"):
            found[name] = _nothing
        older = {
            "conf": "dump_conf",
            "scheduled": "dump_schedule",
            "active": "dump_active",
            "reserved": "dump_reserved",
        }
        older |= {"revoked": "dump_revoked", "registered": "dump_tasks"}
        return found | {old: found[name] for name, old in older.items()}

    # -- revoking --------------------------------------------------------------------------------------

    def revoke(self, state: Any, task_id: Any = (), **_: Any) -> dict[str, Any]:
        """``terminate`` and ``signal`` are the workers' business: what waits here does not run."""
        ids, ignored = self._revoking.revoke(maybe_list(task_id) or ())
        said = f"tasks {', '.join(ids)} flagged as revoked"
        if ignored:
            named = ", ".join(f"{one!r:.60}" for one in ignored[:NAMED])
            said += f"; {len(ignored):,} ignored, which can be no task ids: {named}" + " …" * (len(ignored) > NAMED)
        return {"ok": said}

    def terminate(self, state: Any, signal: Any = None, task_id: Any = (), **_: Any) -> dict[str, Any]:
        return self.revoke(state, task_id)

    def revoke_by_stamped_headers(self, state: Any, headers: Any = (), **_: Any) -> dict[str, Any]:
        if isinstance(headers, list):  # as the command line gives them
            headers = dict(one.split("=", 1) for one in headers)
        self._revoking.revoke_stamps(headers)
        return {"ok": f"headers {headers} flagged as revoked, what waits is looked through"}

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
            "wheel": looking.wheel(self._view),
        }

    def _broker(self) -> dict[str, Any]:
        info: dict[str, Any] = dict(self.connection.info()) if self.connection is not None else {}
        for secret in ("password", "alternates", "transport_options"):  # all of which may have one
            info.pop(secret, None)
        return info

    def heartbeat(self, state: Any, **_: Any) -> None:
        self.beat_now = True

    def _switch_events(self, on: bool) -> dict[str, Any]:
        before, self.task_events = self.task_events, on
        return {"ok": f"task events {'already ' if on == before else ''}{'enabled' if on else 'disabled'}"}


def _nothing(state: Any, **_: Any) -> list[Any]:
    return []
