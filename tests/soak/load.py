"""The load of a soak: tasks, cancels, schedules, and the two schedulers with their supervisor."""

import random
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import amqp
import kombu

from celery_wheel.errors import StoreError, WheelUnavailable
from tests.faults.instants import PLANS
from tests.faults.load import SETTINGS
from tests.kit.patience import patience
from tests.kit.stack import Stack
from tests.soak.consumer import Consumer, now_ms
from tests.soak.ledger import Ledger, number_of, task_id

YOUNG, OLD = SCHEDULERS = ("young", "old")

SHARDS = 2

#: Tasks of one key are dispatched in order. They are in both shards.
KEYS = 8

#: Part of the tasks, and the bounds of their delay in seconds.
DELAYS = ((0.55, 1, 10), (0.3, 10, 120), (0.12, 120, 1_200), (0.03, 1_200, 3_600))

#: A task that is due is no task of the wheel: where this process is late, it sends none that is nearer.
NEAREST_MS = 500

#: Part of the tasks that somebody might cancel.
CANCELLED = 0.02

#: Seconds between two requests to cancel, and the tasks of one: mostly new ones, which are pending.
CANCELS_EVERY_S, CANCELS = 2.0, 10

#: Seconds between the end of a scheduler and its start by the supervisor.
RESTART_S = 2.0

#: Threads that send: each waits for the broker's disk.
SENDERS = 4


class Load(Stack):
    """A stack whose threads send, cancel and consume until ``end``; each thread that fails ends the run."""

    def __init__(
        self, folder: Path, kept: Path, parts: dict[str, Any], ledger: Ledger, run: int, rate: int, rng: random.Random
    ) -> None:
        amqp_url = parts["broker"].url.startswith("amqp")
        options = {"broker_transport_options": {"confirm_publish": True}} if amqp_url else {}
        super().__init__(
            folder,
            parts["broker"].server,
            parts["store"].url,
            wheel_shards=SHARDS,
            wheel_history_retention=3_600,
            beat_schedule_filename=str(kept / "celerybeat-schedule"),
            **SETTINGS,
            **options,
        )
        self.ledger, self.run, self.rate, self.rng = ledger, run, rate, rng
        self.plans = [replace(plan, copy=run) for plan in PLANS]
        self.stop, self.stop_sending = threading.Event(), threading.Event()
        self.failures: list[str] = []
        self.consumer = Consumer(self.broker, ledger, self.stop)
        self._recent: deque[int] = deque(maxlen=1_000)
        self._threads = [
            threading.Thread(target=self._watched, args=(work,))
            for work in (self._send, self._cancel, self.consumer.run)
        ]

    def begin(self) -> None:
        for name in SCHEDULERS:
            self.beat(name)
            self[name].wait_for("beat: Starting")
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for event in (self.stop, self.stop_sending):
            event.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(patience(60))
        self.close()

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self.failures.append(traceback.format_exc())
            self.stop.set()

    # -- schedulers ------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Start each scheduler that has ended by itself, as a supervisor would; it is written down as a fault."""
        for name in SCHEDULERS:
            if not self[name].is_alive():
                code, said = self[name].end()
                note = f"exit code {code}: {said.strip()[-300:]}"
                self.ledger.write(
                    "INSERT INTO faults VALUES (?, ?, ?, ?, ?)",
                    [(self.run, f"the {name} scheduler ended", now_ms(), now_ms(), note)],
                )
                self.stop.wait(RESTART_S)
                self.beat(name)

    # -- tasks -----------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send tasks by the second: each is written down, sent by one of several threads, and written down as sent."""
        number = self.ledger.one("SELECT coalesce(max(number), 0) FROM sends")
        with ThreadPoolExecutor(SENDERS) as pool:
            while not self.stop_sending.is_set():
                began_ms = now_ms()
                dues = [began_ms + 1_000 * place // self.rate + self._delay_ms() for place in range(self.rate)]
                tasks = list(enumerate(dues, number + 1))
                number += len(tasks)
                self.ledger.write("INSERT INTO sends (number, due_ms) VALUES (?, ?)", tasks)
                shares = [tasks[first::SENDERS] for first in range(SENDERS)]
                accepted: list[tuple[int, int]] = []
                unsent: list[tuple[int]] = []
                for sent, others in pool.map(partial(self._send_share, began_ms), shares):
                    accepted += sent
                    unsent += others
                self.ledger.write("UPDATE sends SET accepted_ms = ? WHERE number = ?", accepted)
                self.ledger.write("DELETE FROM sends WHERE number = ?", unsent)
                self._recent += [one for _, one in accepted if self.rng.random() < CANCELLED]

    def _send_share(
        self, began_ms: int, tasks: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int]], list[tuple[int]]]:
        """Send some tasks of a second, spread over it; returns those that the broker has accepted, and those not sent.

        After an error the rest of them is not sent; the one that was being sent may have arrived.
        """
        accepted, unsent = [], []
        refused = False
        for place, (number, due_ms) in enumerate(tasks):
            self.stop_sending.wait(max(0, began_ms + 1_000 * place // len(tasks) - now_ms()) / 1_000)
            if refused or self.stop_sending.is_set() or due_ms < now_ms() + NEAREST_MS:
                unsent.append((number,))
                continue
            try:
                self._send_one(number, due_ms)
            except (kombu.exceptions.KombuError, amqp.AMQPError, OSError):
                refused = True
            else:
                accepted.append((now_ms(), number))
        return accepted, unsent

    def _delay_ms(self) -> int:
        parts, *bounds = zip(*DELAYS, strict=True)
        [(low, high)] = self.rng.choices(list(zip(*bounds, strict=True)), parts)
        return int(1_000 * self.rng.uniform(low, high))

    def _send_one(self, number: int, due_ms: int) -> None:
        self.app.send_task(
            "note",
            (number, due_ms, "x" * (number % 400)),
            eta=datetime.fromtimestamp(due_ms // 1_000, UTC).replace(microsecond=due_ms % 1_000 * 1_000),
            task_id=task_id(number),
            wheel={"key": f"key {number % KEYS}"},
            retry=False,
        )

    # -- cancels ---------------------------------------------------------------------------------------

    def _cancel(self) -> None:
        while not self.stop_sending.wait(CANCELS_EVERY_S):
            # Fewer than come, so that there are old tasks in an outage, too.
            count = min(CANCELS, len(self._recent))
            wanted = [self._recent.pop() if self.rng.random() < 0.7 else self._recent.popleft() for _ in range(count)]
            if wanted:
                self.ledger.write("INSERT INTO cancels VALUES (?, ?, NULL, NULL)", [(one, now_ms()) for one in wanted])
                answers = self._answers([task_id(one) for one in wanted])
                rows = [(now_ms(), answer, number_of(one)) for one, answer in answers.items()]
                self.ledger.write("UPDATE cancels SET answered_ms = ?, answer = ? WHERE number = ?", rows)

    def _answers(self, ids: list[str]) -> dict[str, str]:
        """Return the answer of each: of the wheel, ``withdrawn`` where no shard answered, or ``in doubt``."""
        try:
            return {one: str(answer) for one, answer in self.app.wheel.cancel(ids, timeout=10).items()}
        except WheelUnavailable as error:
            # A shard that has answered, and does not know the task, cancels it if it comes.
            other = "withdrawn" if len(error.shards) == SHARDS else "in doubt"
            return {**dict.fromkeys(ids, other), **{one: str(answer) for one, answer in error.results.items()}}
        except StoreError:
            return dict.fromkeys(ids, "in doubt")

    # -- schedules -------------------------------------------------------------------------------------

    def create_schedules(self) -> tuple[int, int]:
        """Create the schedules of this run, and none else remains; returns the instants before and after."""
        self.delete_schedules()
        asked_ms = now_ms()
        wanted = {plan.name: plan.arguments() for plan in self.plans}
        answers = self.app.wheel.schedules.create_many(wanted, timeout=patience(60))
        assert {one.result for one in answers.values()} == {"done"}, answers
        return asked_ms, now_ms()

    def delete_schedules(self) -> None:
        schedules = self.app.wheel.schedules
        schedules.delete(schedules.where(), timeout=patience(60))
