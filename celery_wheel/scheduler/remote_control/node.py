"""The node: a mailbox of Celery's remote control, in a thread and on a connection of its own.

::

    connect ─► listen ─► drain, at most a second ─┐      an error ends the connection; after a pause, longer each
       ▲                  ├ commands, one by one   │      time up to RETRY_MOST_S, the node connects again
       │                  ├ heartbeat              │
       └── pause ◄────────┴ error ─────────────────┘      dispatch waits for nothing here

On a transport without fanout no node is started, and the log says so once.

A broadcast reaches the nodes that listen at that moment. A command sent while no scheduler listened is lost: the answer
of the node is the receipt. ``app.wheel.cancel`` needs no broadcast, and its result is certain.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from celery.utils.collections import AttributeDict

from celery_wheel.scheduler.remote_control.commands import Commands
from celery_wheel.scheduler.remote_control.heartbeat import EVERY_S, Heartbeat
from celery_wheel.scheduler.remote_control.revocation import RevokeListener
from celery_wheel.scheduler.remote_control.revoked_state import RevokedState
from celery_wheel.scheduler.remote_control.view import SchedulerView
from celery_wheel.timing import Backoff, RetryLog

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0

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
                    extra={"action": "node_lost"},
                )
                self._stop.wait(pause_s)
        self._revokes.close()

    def _serve(self) -> None:
        """Answer commands until the stop, or until an error."""
        with self._app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1)
            state = AttributeDict(app=self._app, hostname=self._name)
            mailbox = self._app.control.mailbox
            node = mailbox.Node(self._name, handlers=self._handlers, state=state, channel=connection.channel())
            consumer = node.listen(callback=lambda body, message: self._on_message(node, body, message))
            heartbeat = Heartbeat(self._app, self._name, connection.channel())
            heartbeat.send("worker-online")
            self._commands.connection = connection
            logger.info("the control node %s listens", self._name, extra={"action": "node_listens"})
            try:
                self._drain(connection, heartbeat)
                heartbeat.send("worker-offline")
            finally:
                self._commands.connection = None
                with suppress(*connection.connection_errors, *connection.channel_errors):  # it may be lost
                    consumer.cancel()

    def _drain(self, connection: Any, heartbeat: Heartbeat) -> None:
        beat_s = time.monotonic()
        while not self._stop.is_set():
            with suppress(TimeoutError):  # no command came
                connection.drain_events(timeout=1.0)
            self._revokes.tend()
            if self._commands.beat_now or time.monotonic() - beat_s >= EVERY_S:
                heartbeat.send("worker-heartbeat")
                self._commands.beat_now, beat_s = False, time.monotonic()

    def _on_message(self, node: Any, body: Any, message: Any) -> None:
        """Handle a command. Its errors are answered and logged, and the node goes on."""
        try:
            self._app.clock.forward()
            if not isinstance(body, dict) or _is_for_workers(body):
                return
            if body.get("method") in self._handlers:
                node.handle_message(body, message)
            elif self._name in (body.get("destination") or ()) and body.get("reply_to"):
                error = f"{self._name} is a scheduler and runs no tasks: {body.get('method')} is for workers"
                to = body["reply_to"]
                node.reply({self._name: {"error": error}}, to["exchange"], to["routing_key"], body.get("ticket"))
        except Exception:
            logger.exception("a control command failed: %r", body, extra={"action": "command_failed"})


def _is_for_workers(body: dict[str, Any]) -> bool:
    """Whether a command asks for workers: a ping that names nobody, as of ``celery status`` and of probes."""
    return body.get("method") == "ping" and not (body.get("destination") or body.get("pattern"))
