"""The client of a network: sends tasks in one thread and cancels some of them in another, with a ledger of each.

::

    {"begun": id, "eta_ms": …}                        a send begins
    {"sent": id, "at_ms": …}                          the broker has the task
    {"failed": id, "why": …, "at_ms": …}              the send raised: the broker may have the task
    {"asked": [id, …], "at_ms": …}                    a cancel begins
    {"answered": {id: said}, "at_ms": …, "took_ms": …}    "done", "too_late", …, or the name of an error
"""

import json
import os
import queue
import random
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from amqp import AMQPError
from kombu.exceptions import KombuError

from celery_wheel.errors import WheelError
from tests.kit.project import app
from tests.soak.consumer import now_ms

#: Tasks a second, the share that is cancelled, and the time-out of a cancel.
RATE, CANCELLED, TIMEOUT_S = 40, 0.2, 5

#: Seconds from the send of a task to its due time.
DELAYS_S = (0.5, 6)


class Client:
    def __init__(self, ledger: Path, seed: int) -> None:
        self._file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._rng = random.Random(seed)
        self._chosen: queue.Queue[str] = queue.Queue()

    def _write(self, **line: Any) -> None:
        os.write(self._file, json.dumps({**line, "at_ms": now_ms()}).encode() + b"\n")

    def send(self) -> None:
        while True:
            began_s = time.monotonic()
            countdown_s, id_ = self._rng.uniform(*DELAYS_S), str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            eta_ms = now_ms() + int(countdown_s * 1_000)
            self._write(begun=id_, eta_ms=eta_ms)
            try:
                app.send_task("note", ("load", eta_ms), countdown=countdown_s, task_id=id_, retry=False)
            except (KombuError, AMQPError, OSError) as error:
                self._write(failed=id_, why=f"{type(error).__name__}: {error}"[:200])
                time.sleep(0.2)
            else:
                self._write(sent=id_)
                if countdown_s > 2 and self._rng.random() < CANCELLED:
                    self._chosen.put(id_)
            time.sleep(max(0.0, began_s + 1 / RATE - time.monotonic()))

    def cancel(self) -> None:
        while True:
            ids = [self._chosen.get()]
            while not self._chosen.empty():
                ids.append(self._chosen.get())
            self._write(asked=ids)
            began_s = time.monotonic()
            try:
                said = {id_: str(result) for id_, result in app.wheel.cancel(ids, timeout=TIMEOUT_S).items()}
            except WheelError as error:
                said = dict.fromkeys(ids, type(error).__name__)
            self._write(answered=said, took_ms=int((time.monotonic() - began_s) * 1_000))


if __name__ == "__main__":
    client = Client(Path(sys.argv[1]), int(sys.argv[2]))
    threading.Thread(target=client.cancel, daemon=True).start()
    client.send()
