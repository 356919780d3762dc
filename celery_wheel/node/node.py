"""The node: a mailbox of Celery's remote control, in a thread and on a connection of its own.

::

    connect ─► listen ─► drain, at most a second ─┐      what fails ends the connection, and after a pause, longer
       ▲                  ├ commands, one by one   │      each time up to RETRY_MAX_S, there is another
       │                  ├ heartbeat              │
       └── pause ◄────────┴ error ─────────────────┘      nothing here is waited for by dispatch

Where the transport has no fanout there is no node, which is said once.

A broadcast reaches who listens at that moment. What was sent while no scheduler listened did not come to the wheel: the
answer of the node is the receipt. ``app.wheel.cancel`` needs no broadcast, and says for certain.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from celery.utils.collections import AttributeDict

from celery_wheel.node.books import Books
from celery_wheel.node.commands import Commands
from celery_wheel.node.pulse import EVERY_S, Pulse
from celery_wheel.node.revoking import Revoking
from celery_wheel.node.view import View

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 10.0

#: A stop does not wait longer for the thread, which is a daemon's.
JOIN_S = 3.0


class Node:
    def __init__(self, app: Any, view: View) -> None:
        self._app = app
        self._name = view.name
        self._revoking = Revoking(view)
        self._commands = Commands(app, view, self._revoking)
        self._handlers = self._commands.handlers()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wheel-node", daemon=True)

    def books(self) -> Books:
        """Task events are on for them when they are on for the node."""
        return Books(self._app, self._name, lambda: self._commands.task_events)

    def start(self) -> None:
        with self._app.connection_for_read() as connection:  # a template: nothing is connected
            served, transport = connection.supports_exchange_type("fanout"), connection.transport_cls
        if served:
            self._thread.start()
        else:
            logger.warning(
                "transport %s has no fanout: revoke and inspect do not reach the wheel; app.wheel.cancel does",
                transport,
                extra={"action": "no_control"},
            )

    def stop(self) -> None:
        """Let it end; ``join`` waits for that."""
        self._stop.set()
        self._revoking.stop()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    # -- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = RETRY_FIRST_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            try:
                self._serve()
            except Exception as error:  # whatever it is: the node comes back, and the scheduler never minds
                if time.monotonic() - began_s > RETRY_MAX_S:
                    pause_s = RETRY_FIRST_S
                logger.warning(
                    "the control node %s lost the broker (%r); again in %.1f s",
                    self._name,
                    error,
                    pause_s,
                    extra={"action": "node_lost"},
                )
                self._stop.wait(pause_s)
                pause_s = min(RETRY_MAX_S, pause_s * 2)
        self._revoking.close()

    def _serve(self) -> None:
        """Until the stop, or until something fails."""
        with self._app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1)
            state = AttributeDict(app=self._app, hostname=self._name)
            mailbox = self._app.control.mailbox
            node = mailbox.Node(self._name, handlers=self._handlers, state=state, channel=connection.channel())
            consumer = node.listen(callback=lambda body, message: self._on_message(node, body, message))
            pulse = Pulse(self._app, self._name, connection.channel())
            pulse.online()
            self._commands.connection = connection
            logger.info("the control node %s listens", self._name, extra={"action": "node_listens"})
            try:
                self._drain(connection, pulse)
                pulse.offline()
            finally:
                self._commands.connection = None
                with suppress(*connection.connection_errors, *connection.channel_errors):  # it may be lost
                    consumer.cancel()

    def _drain(self, connection: Any, pulse: Pulse) -> None:
        beat_s = time.monotonic()
        while not self._stop.is_set():
            with suppress(TimeoutError):  # nobody asked anything
                connection.drain_events(timeout=1.0)
            self._revoking.look()
            if self._commands.beat_now or time.monotonic() - beat_s >= EVERY_S:
                pulse.beat()
                self._commands.beat_now, beat_s = False, time.monotonic()

    def _on_message(self, node: Any, body: Any, message: Any) -> None:
        """Errors of a command are the asker's; they are answered and logged, and the node goes on."""
        try:
            self._app.clock.forward()
            if not isinstance(body, dict):
                return
            if body.get("method") in self._handlers:
                node.handle_message(body, message)
            elif self._name in (body.get("destination") or ()) and body.get("reply_to"):
                said = {"error": f"{self._name} is a scheduler and runs no tasks: {body.get('method')} is for workers"}
                to = body["reply_to"]
                node.reply({self._name: said}, to["exchange"], to["routing_key"], body.get("ticket"))
        except Exception:
            logger.exception("a control command failed: %r", body, extra={"action": "command_failed"})
