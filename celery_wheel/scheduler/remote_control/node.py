"""The node: a mailbox of Celery's remote control, in a thread and on a connection of its own, with commands and events.

An error ends the connection; the node connects again after a pause, longer each time up to RETRY_MOST_S. Dispatch waits
for nothing here. Every scheduler is a node of its own name and answers about the shards that it holds, in the form of
``celery.worker.control``. All commands that it does not handle are for workers: the node ignores them, unless they name
it as their destination; then it answers that it is no worker. A transport without fanout has no node.

A broadcast reaches the nodes that listen at that moment. A command sent while no scheduler listened is lost: the answer
of the node is the receipt. ``app.wheel.cancel`` needs no broadcast, and its result is certain.
"""

from __future__ import annotations

import gc
import logging
import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from celery.events import EventDispatcher
from celery.utils.collections import AttributeDict
from celery.utils.functional import maybe_list
from celery.utils.sysinfo import load_average
from celery.worker import control
from celery.worker.state import SOFTWARE_INFO

from celery_wheel.broker.transport import bounded_connection
from celery_wheel.scheduler.remote_control import SchedulerView, inspection
from celery_wheel.scheduler.remote_control.revocation import RevokeListener
from celery_wheel.scheduler.remote_control.revoked_state import RevokedState
from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.values.error_text import error_place
from celery_wheel.values.log import get_logger

#: The time between two heartbeats. Each names it, so that a monitor takes a silent node for lost after twice as long. A
#: worker sends five times as many; to an idle scheduler with 16 shards those were a tenth of its CPU.
EVERY_S = 10.0


class Heartbeat(EventDispatcher):  # type: ignore[misc]  # celery carries no types
    """The events of one connection; its errors are raised to the caller, which opens the next connection."""

    def __init__(self, app: Any, node: str, channel: Any) -> None:
        client = channel.connection.client
        super().__init__(client, hostname=node, channel=channel, app=app, buffer_while_offline=False)

    def beat(self, event: Literal["worker-online", "worker-heartbeat", "worker-offline"]) -> None:
        self.send(event, freq=EVERY_S, active=0, processed=0, loadavg=load_average(), **SOFTWARE_INFO)

    def _publish(self, event: Any, producer: Any, routing_key: str, **options: Any) -> Any:
        return super()._publish(event, producer, routing_key.replace("worker.", "wheel.", 1), **options)


Handler = Callable[..., Any]


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
            "terminate": self.revoke,
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
        found |= dict.fromkeys(("active", "reserved", "registered", "active_queues"), lambda state, **_: [])
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
            named = ", ".join(f"{one!r:.60}" for one in ignored[:5])
            text += f"; {len(ignored):,} ignored, which cannot be task ids: {named}" + " …" * (len(ignored) > 5)
        return {"ok": text}

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


logger = get_logger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0

#: The first look of a new connection, in which the broker confirms the subscription.
SUBSCRIBED_S = 0.1

#: A stop waits no longer for the thread, which is a daemon.
JOIN_S = 3.0


class Node:
    def __init__(self, app: Any, view: SchedulerView) -> None:
        self._app = app
        self._name = view.name
        self._revokes = RevokeListener(view)
        self._commands = Commands(app, view, self._revokes)
        self._handlers = self._commands.handlers()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-node", daemon=True)

    def revoked_state(self) -> RevokedState:
        """Return the recorder of revoked tasks; it sends task events while the node has them enabled."""
        return RevokedState(self._app, self._name, lambda: self._commands.task_events)

    def start(self) -> None:
        with self._app.connection_for_read() as connection:  # not connected, only inspected
            served, transport = connection.supports_exchange_type("fanout"), connection.transport_cls
        if served:
            self._thread.start()
        else:
            logger.warning(
                "transport %s has no fanout: revoke and inspect do not reach the wheel; use app.wheel.cancel",
                transport,
                extra={"action": "no_control"},
            )

    def stop(self) -> None:
        """Ask the thread to end; ``join`` waits for it."""
        self._stop.set()
        self._revokes.stop()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff, log = Backoff(RETRY_FIRST_S, RETRY_MOST_S), RetryLog(logger, time.monotonic)
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._serve()
            except Exception as error:  # of any kind: the node connects again, and the scheduler goes on
                if time.monotonic() - began_s > RETRY_MOST_S:
                    backoff.succeeded()
                pause_s = backoff.failed()
                log.write(
                    logging.WARNING,
                    "node_lost",
                    "the control node %s lost the broker (%r); it connects again in %.1f s",
                    self._name,
                    error,
                    pause_s,
                )
                self._stop.wait(pause_s)
            # Each connection of kombu to Redis has an epoll, in a cycle that the collector of this process would leave
            # for long (``monitoring.GARBAGE_EVERY``): half an hour without Redis held seventy of them.
            gc.collect(0)
        self._revokes.close()

    def _serve(self) -> None:
        # The thread waits for commands, and sends no heartbeats of AMQP.
        with bounded_connection(self._app.connection_for_read, heartbeat=0) as connection:
            connection.ensure_connection(max_retries=1)
            state = AttributeDict(app=self._app, hostname=self._name)
            mailbox = self._app.control.mailbox
            node = mailbox.Node(self._name, handlers=self._handlers, state=state, channel=connection.channel())
            consumer = node.listen(callback=lambda body, message: self._on_message(node, body, message))
            heartbeat = Heartbeat(self._app, self._name, connection.channel())
            self._commands.connection = connection
            try:
                # kombu subscribes at its first look (Redis): until then a revoke passes by, a lost broker is not seen.
                with suppress(TimeoutError):
                    connection.drain_events(timeout=SUBSCRIBED_S)
                heartbeat.beat("worker-online")
                logger.info("the control node %s listens", self._name, extra={"action": "node_listens"})
                self._drain(connection, heartbeat)
                heartbeat.beat("worker-offline")
            finally:
                self._commands.connection = None
                with suppress(*connection.connection_errors, *connection.channel_errors):  # it may be lost
                    consumer.cancel()
                # kombu's virtual channels are kept by a finalizer, with their sockets, where an error ends their close.
                for qos in filter(None, (getattr(one, "qos", None) for one in (node.channel, heartbeat.channel))):
                    qos.restore_unacked_once()

    def _drain(self, connection: Any, heartbeat: Heartbeat) -> None:
        beat_s = time.monotonic()
        while not self._stop.is_set():
            with suppress(TimeoutError):  # no command came
                connection.drain_events(timeout=1.0)
            self._revokes.tend()
            if self._commands.beat_now or time.monotonic() - beat_s >= EVERY_S:
                heartbeat.beat("worker-heartbeat")
                self._commands.beat_now, beat_s = False, time.monotonic()

    def _on_message(self, node: Any, body: Any, message: Any) -> None:
        """Handle a command. Its errors are answered and logged, and the node goes on."""
        try:
            self._app.clock.forward()
            if not isinstance(body, dict):
                return
            # A ping that names nobody, as of ``celery status`` and of probes, asks for workers.
            if body.get("method") == "ping" and not (body.get("destination") or body.get("pattern")):
                return
            if body.get("method") in self._handlers:
                node.handle_message(body, message)
            elif self._name in (body.get("destination") or ()) and body.get("reply_to"):
                error = f"{self._name} is a scheduler and runs no tasks: {body.get('method')} is for workers"
                to = body["reply_to"]
                node.reply({self._name: {"error": error}}, to["exchange"], to["routing_key"], body.get("ticket"))
        except Exception as error:
            method = body.get("method") if isinstance(body, dict) else None
            text = "the control command %.80s failed (%s)"  # its arguments, which an error may quote, stay unsaid
            logger.error(text, method, error_place(error), extra={"action": "command_failed"})
