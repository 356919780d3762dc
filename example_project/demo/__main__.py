"""``make demo``: a day of real flights through redis, beat with the wheel, a worker and a web page.

::

    start: redis ─► migrate ─► beat, worker, web ─► addresses        each wait ends with a state, not with a time
    work:  manage.py replay_flights ─► summary
    end:   every process is stopped, whatever happened

A signal only sets an event, and every wait looks at it. So no step is interrupted half-way, and the processes are
stopped in one place.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from flights.timetable import day_length_ms
from kombu.utils.url import maybe_sanitize_url

from demo import broker, folder
from demo.errors import DemoError
from demo.processes import Child
from demo.stack import LOGIN, PASSWORD, PROJECT, Stack

POLL_S = 0.1
DEFAULT_RUN_DIR = PROJECT.parent / ".run" / "demo"
MIN_SECONDS = 10  #: in a shorter day all reminders are due at once
#: Seconds that a part may take to start, or the replay to print its summary: far more than a busy machine needs.
PATIENCE_S = 300
PROGRESS_S = 10  #: seconds between two lines about a wait


class Interrupted(Exception):
    """The user ended the demo by a signal."""


class Demo:
    """The stack, and the job that runs on it (``work``)."""

    INTERRUPTED = 0  #: exit code after Ctrl-C

    def __init__(self, options: argparse.Namespace, stop: threading.Event) -> None:
        self.options = options
        self.stop = stop
        self.stack = Stack(options.run_dir, os.environ.get("BROKER_URL") or None, self.until)

    def run(self) -> int:
        """Run the whole demo; returns the exit code."""
        held = folder.take(self.options.run_dir)
        try:
            self._start()
            return self.work()
        except Interrupted:
            return self.INTERRUPTED
        finally:
            self.stack.stop()
            held.close()

    def _start(self) -> None:
        stack, port = self.stack, _web_port(self.options.port)
        parts = ["redis"] * stack.own_broker + ["beat", "worker", "web"]
        print("demo: starting", ", ".join(parts), flush=True)
        stack.start_broker()
        stack.migrate()
        stack.start_beat()
        worker = stack.start_worker()
        stack.start_web(port)
        stack.wait_for_web(port)
        stack.wait_for_worker(worker)
        self._print_addresses(port)

    def work(self) -> int:
        """Replay the day; then, unless ``--seconds`` was given, leave everything running until Ctrl-C."""
        arguments = [f"--date={self.options.date}", f"--speed={self._speed():.6g}", "--reports"]
        replay = self.stack.manage("replay", "replay_flights", *arguments, to_log=False)
        try:
            self.finish(replay)
        except Interrupted:
            return _summary_of_interrupted(replay)
        if replay.popen.returncode:
            return 1
        if self.options.seconds is None:
            print("\ndemo: the day is over; everything keeps running until Ctrl-C", flush=True)
            while True:
                self._pause()
        return 0

    def finish(self, child: Child) -> None:
        """Wait for the end of a process that takes its time and shows its own progress."""
        while child.popen.poll() is None:
            self._pause(child)
        self.stack.processes.stop(child.name)

    def until(self, reached: Callable[[], bool], what: str) -> None:
        """Wait for a state. Raises Interrupted on a signal, DemoError on a crash or after ``PATIENCE_S``."""
        began = time.monotonic()
        next_line = began + PROGRESS_S
        while True:
            crashed = self.stack.processes.ended()  # read first: ``reached`` may itself wait for an end
            if reached():
                return
            self._raise_for(crashed)
            if time.monotonic() > began + PATIENCE_S:
                raise DemoError(f"{what} was not ready after {PATIENCE_S} s; see the logs in {self.options.run_dir}")
            if time.monotonic() > next_line:
                print(f"demo: waiting for {what}, {next_line - began:.0f} s so far", flush=True)
                next_line += PROGRESS_S
            if self.stop.wait(POLL_S):
                raise Interrupted

    def _pause(self, job: Child | None = None) -> None:
        """Let a moment pass. Raises Interrupted on a signal, DemoError when a process other than ``job`` has ended."""
        ended = self.stack.processes.ended()
        if ended is not job:
            self._raise_for(ended)
        if self.stop.wait(POLL_S):
            raise Interrupted

    def _raise_for(self, crashed: Child | None) -> None:
        if crashed is not None:
            raise DemoError(f"{crashed.name} ended with {crashed.popen.returncode}:\n{crashed.tail()}")

    def _speed(self) -> float:
        """Return ``--speed``; with ``--seconds``, the speed at which the day lasts so long."""
        if self.options.seconds is None:
            return self.options.speed
        return day_length_ms(self.options.date) / 1000 / self.options.seconds

    def _print_addresses(self, port: int) -> None:
        run_dir = _short(self.options.run_dir)
        celery = _short(Path(os.path.abspath(sys.executable)).with_name("celery"))
        wheel = f"{celery} --workdir {_short(PROJECT)} -A config wheel status"
        lines = {
            "board": f"http://127.0.0.1:{port}/",
            "admin": f"http://127.0.0.1:{port}/admin/django_wheel/wheel/  login {LOGIN}, password {PASSWORD}",
            "metrics": f"http://{self.stack.metrics}/metrics",
            "wheel": wheel if self.options.run_dir == DEFAULT_RUN_DIR else f"RUN_DIR={run_dir} {wheel}",
            "broker": maybe_sanitize_url(self.stack.broker_url),
            "logs": f"{run_dir}/{{beat,worker,web}}.log",
        }
        print("\nWhere to look", *(f"  {name:<7} {text}" for name, text in lines.items()), "", sep="\n", flush=True)


def _summary_of_interrupted(replay: Child) -> int:
    """Let an interrupted replay print its summary; returns the exit code."""
    replay.popen.send_signal(signal.SIGINT)
    try:
        return 1 if replay.popen.wait(PATIENCE_S) else 0
    except subprocess.TimeoutExpired:
        print(f"demo: the replay printed no summary within {PATIENCE_S} s", file=sys.stderr)
        return 1


def _web_port(wanted: int | None) -> int:
    if wanted is None:
        return next((port for port in range(8000, 8010) if broker.is_free(port)), None) or broker.free_port()
    if not broker.is_free(wanted):
        raise DemoError(f"port {wanted} is in use; name another: make demo PORT={wanted + 1}")
    return wanted


def _short(path: Path) -> str:
    """Return the path relative to the folder in which the user runs ``make demo``."""
    return str(path.relative_to(PROJECT.parent) if path.is_relative_to(PROJECT.parent) else path)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--seconds", type=seconds, help="let the day pass in so many seconds, then end")
    parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 7, 10), help="a day of 2013")
    parser.add_argument("--speed", type=float, default=600.0, help="speed of the day without --seconds, default 600")
    parser.add_argument("--port", type=int, help="port of the web page")
    parser.add_argument("--run-dir", type=Path, default=DEFAULT_RUN_DIR, help="folder of the run's files")
    return with_run_dir(parser.parse_args(argv))


def seconds(text: str) -> float:
    """Return a length of the day, for argparse."""
    value = float(text)
    if not value >= MIN_SECONDS:
        raise argparse.ArgumentTypeError(f"seconds must be at least {MIN_SECONDS}, got {text}")
    return value


def with_run_dir(options: argparse.Namespace) -> argparse.Namespace:
    options.run_dir = options.run_dir.resolve()
    return options


def main(argv: Sequence[str]) -> int:
    return run(Demo, _options(argv))


def run(demo: type[Demo], options: argparse.Namespace) -> int:
    """Run a demo until its end or a signal; returns the exit code."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: stop.set())
    try:
        return demo(options, stop).run()
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
