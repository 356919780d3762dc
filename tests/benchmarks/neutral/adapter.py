"""The wheel's process in the harness: it owns a beat and a worker, sends jobs, and prints a line for each metric.

Its contract is that of CONTRIBUTING_ADAPTERS.md of the harness: settings come as variables, "ENQUEUE n" on stdin asks
for n jobs, and SIGTERM ends it. Where it is killed, the kernel kills its beat and its worker.
"""

import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

MANIFEST = json.loads((Path(__file__).parent / "adapter.json").read_text())
PR_SET_PDEATHSIG = 1
WINDOW_S = 30.0
DUE_S = 0.001
STARTED_S = 50.0  #: the harness waits for a minute
DAY_S = 86_400


def number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class Adapter:
    def __init__(self) -> None:
        self.enqueued = self.completed = 0
        self.rate = float(number("PRODUCER_RATE", 800))
        self.latencies: deque[tuple[float, float]] = deque(maxlen=200_000)  #: (when, ms)
        self.over = threading.Event()
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.5)
        os.environ["NEUTRAL_PORT"] = str(self._socket.getsockname()[1])
        from tests.benchmarks.neutral.app import app, job, later

        self.app, self.job, self.later = app, job, later

    def run(self) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda *_: self.over.set())
        beat = self._start("beat", "--pidfile=", "-s", f"{self._folder.name}/beat")
        worker = self._start("worker", "-c", str(number("WORKER_COUNT", 32)))
        children = {beat: signal.SIGTERM, worker: signal.SIGQUIT}  # the worker's jobs are not waited for
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            self._begin()
            for target in (self._produce, self._sample):
                threading.Thread(target=target, daemon=True).start()
            while not self.over.wait(0.2):
                if any(child.poll() is not None for child in children):
                    raise SystemExit("a process of the wheel has ended")
        finally:
            for child, how in children.items():
                child.send_signal(how)
            for child in children:
                child.wait(15)

    def _start(self, *command: str) -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.neutral.app", *command, "-l", "WARNING"]
        die_with_it = partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGKILL)
        return subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_it)

    def _begin(self) -> None:
        """Wait until a first job has run, and tell the harness."""
        until_s = time.monotonic() + STARTED_S
        self.job.apply_async((time.time(),), countdown=DUE_S)
        while not self.completed and time.monotonic() < until_s:
            time.sleep(0.05)
        if not self.completed:
            raise SystemExit(f"no job has run for {STARTED_S:g} s")
        self.completed = 0
        self.latencies.clear()
        about = {key: MANIFEST[key] for key in ("system", "db_name", "event_tables", "event_indexes", "extensions")}
        say({"kind": "descriptor", **about, "version": version("celery-wheel"), "started_at": now()})
        if deferred := number("DEFERRED", 0):
            threading.Thread(target=self._defer, args=(deferred,), daemon=True).start()

    def _defer(self, count: int) -> None:
        began_s = time.monotonic()
        rows = ({"task": self.later, "countdown": DAY_S + n % DAY_S} for n in range(count))
        self.app.wheel.schedule_many(rows)
        print(f"{count:,} tasks are pending after {time.monotonic() - began_s:.0f} s", file=sys.stderr)

    # -- threads -----------------------------------------------------------------------------------------

    def _receive(self) -> None:
        while not self.over.is_set():
            try:
                message = self._socket.recv(64)
            except TimeoutError:
                continue
            self.completed += 1
            [late_s] = struct.unpack("d", message)
            self.latencies.append((time.monotonic(), max(0.0, late_s - DUE_S) * 1_000))

    def _produce(self) -> None:
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            target, most = number("TARGET_DEPTH", 1_000), number("PRODUCER_BATCH_MAX", 128)
            self.rate = 0.0
            while not self.over.is_set():
                count = min(most, target - (self.enqueued - self.completed))
                self._send(count) if count > 0 else time.sleep(0.005)
            return
        credit, before_s = 0.0, time.monotonic()
        while not self.over.is_set():
            if os.environ.get("PRODUCER_PACING", "harness") == "harness":
                if select.select([sys.stdin], [], [], 0.5)[0]:
                    word, _, count = sys.stdin.readline().partition(" ")
                    if word == "ENQUEUE":
                        self._send(int(count))
                    elif not word:
                        return
                continue
            time.sleep(number("PRODUCER_BATCH_MS", 25) / 1_000)
            now_s = time.monotonic()
            credit, before_s = credit + self.rate * (now_s - before_s), now_s
            whole = min(int(credit), number("PRODUCER_BATCH_MAX", 128))
            credit -= whole
            self._send(whole)

    def _send(self, count: int) -> None:
        padding, sent_s = "x" * number("JOB_PAYLOAD_BYTES", 256), time.time()
        try:
            if count == 1:
                self.job.apply_async((sent_s, padding), countdown=DUE_S)
            elif count:
                row = {"task": self.job, "args": (sent_s, padding), "countdown": DUE_S}
                self.app.wheel.schedule_many(islice(iter(lambda: row, None), count))
            self.enqueued += count
        except Exception as error:
            print(f"{count} jobs were not sent: {error}", file=sys.stderr)
            time.sleep(0.1)

    def _sample(self) -> None:
        every_s = number("SAMPLE_EVERY_S", 5)
        is_first = number("BENCH_INSTANCE_ID", 0) == 0  # it alone tells what is of all replicas
        time.sleep(every_s - time.time() % every_s)
        before, before_s = (self.enqueued, self.completed), time.monotonic()
        while not self.over.wait(every_s):
            now_s, after = time.monotonic(), (self.enqueued, self.completed)
            rates = [(b - a) / (now_s - before_s) for a, b in zip(before, after, strict=True)]
            before, before_s = after, now_s
            late = sorted(ms for at_s, ms in list(self.latencies) if at_s > now_s - WINDOW_S) or [0.0]
            found = {f"claim_p{p}_ms": (late[min(len(late) - 1, len(late) * p // 100)], WINDOW_S) for p in (50, 95, 99)}
            found |= {"enqueue_rate": (rates[0], every_s), "completion_rate": (rates[1], every_s)}
            if is_first:
                found |= {"queue_depth": (after[0] - after[1], 0.0), "producer_target_rate": (self.rate, 0.0)}
            for metric, (value, window_s) in found.items():
                about = {"kind": "adapter", "subject_kind": "adapter", "subject": "", "system": MANIFEST["system"]}
                say({"t": now(), **about, "metric": metric, "value": value, "window_s": window_s})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(record: dict[str, Any]) -> None:
    print(json.dumps({**record, "instance_id": number("BENCH_INSTANCE_ID", 0)}), flush=True)


if __name__ == "__main__":
    Adapter().run()
