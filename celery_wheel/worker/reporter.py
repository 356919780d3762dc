"""The reporter: sends the ends of runs to the wheel queues, in a thread of its own.

::

    put(header) ─► kept in memory ─► thread ─► Forwarder ─► wheel queue of the schedule's shard, confirmed
                                       └ no answer: once more after a pause, up to RETRY_MOST_S

The worker's loop waits for nothing here. The thread begins with the first report.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from typing import Any

from celery_wheel.broker.envelope import HEADER, Envelope, encode
from celery_wheel.producer.rescue import Forwarder, ReceivedMessage
from celery_wheel.store.schedule_model import RUN_ENDED_TASK
from celery_wheel.timing import Backoff, RetryLog
from celery_wheel.values.ids import uuid7

logger = logging.getLogger(__name__)

#: Reports kept while the broker does not answer.
MAX_KEPT = 10_000

RETRY_FIRST_S, RETRY_MOST_S = 0.5, 10.0

#: The longest time for which a worker that ends waits for its last reports.
FLUSH_S = 5.0

MEANING = "such a run counts as over its max_runtime after it was due, and until then its schedule waits or skips"


class Reporter:
    def __init__(self, app: Any) -> None:
        self._forwarder = Forwarder(app)
        self._kept: deque[dict[str, Any]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._log = RetryLog(logger, time.monotonic)
        self._thread: threading.Thread | None = None

    def put(self, header: dict[str, Any]) -> None:
        """Report the end of the run of an occurrence, given by its message's header."""
        with self._changed:
            if len(self._kept) >= MAX_KEPT:
                lost = self._kept.popleft()
                self._log.write(
                    logging.ERROR,
                    "report_lost",
                    "the end of a run of schedule %s cannot be reported: the broker does not answer, and %d reports "
                    "wait; %s",
                    lost.get("schedule"),
                    MAX_KEPT,
                    MEANING,
                    extra={"action": "report_lost"},
                )
            self._kept.append(header)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wheel-reports", daemon=True)
                self._thread.start()
            self._changed.notify()

    def flush(self) -> None:
        """Send the kept reports, and end the thread; waits for FLUSH_S at most."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(FLUSH_S)
        if self._kept:
            logger.error(
                "the ends of %d runs were not reported before the worker ended; %s",
                len(self._kept),
                MEANING,
                extra={"action": "reports_lost", "count": len(self._kept)},
            )

    def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        while True:
            with self._changed:
                while not self._kept and not self._ending:
                    self._changed.wait()
                if not self._kept:
                    break
                header = self._kept[0]
            try:
                self._forwarder.publish(report_of(header))
            except (ValueError, TypeError, KeyError) as error:
                logger.error(
                    "the end of a run cannot be reported: its header is %r (%s); %s",
                    header,
                    error,
                    MEANING,
                    extra={"action": "report_refused"},
                )
            except Exception as error:  # each transport has its own classes
                pause_s = backoff.failed()
                self._log.write(
                    logging.WARNING,
                    "report_failed",
                    "the end of a run of schedule %s is not reported yet (%r); it is tried again in %.1f s",
                    header.get("schedule"),
                    error,
                    pause_s,
                    extra={"action": "report_failed"},
                )
                with self._changed:
                    self._changed.wait(pause_s)
                continue
            backoff.succeeded()
            with self._changed:
                if self._kept and self._kept[0] is header:
                    self._kept.popleft()
        self._forwarder.drop()


def report_of(header: dict[str, Any]) -> ReceivedMessage:
    """Return the message that reports the end of a run; its body is that of an inbox item ``run_ended``."""
    now_ms = time.time_ns() // 1_000_000
    envelope = Envelope(
        id=uuid7(),
        task=RUN_ENDED_TASK,
        task_id=header["schedule"],  # by which the forwarder finds the schedule's shard
        eta_ms=now_ms,
        created_ms=now_ms,
        exchange="",
        exchange_type="direct",
        routing_key=RUN_ENDED_TASK,  # a place for a name: no scheduler publishes the message
    )
    body = json.dumps({"schedule": header["id"], "instant_ms": header["scheduled_for"]}).encode()
    return ReceivedMessage(envelope, {HEADER: encode(envelope)}, {}, body, "application/json", "utf-8", None)
