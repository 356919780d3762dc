"""``make demo``: runs the main job on real input, with everything it needs, and cleans up after itself.

A signal only sets an event; every wait here looks at it. So nothing is interrupted half-way,
and whatever happens the processes are stopped in one place.
"""

import argparse
import math
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
MIN_SECONDS = 25  #: below this, starting and stopping leave no time for the day
MIN_DAY_S = 5  #: and a day takes at least this long
REPLAY_START_S = 5  #: from the start of the replay's process to the beginning of the day
END_S = 6  #: from the last reminder to the end: looking for duplicates, the summary, stopping
SUMMARY_S = 10  #: how long the replay may take for its summary after Ctrl-C


class Interrupted(Exception):
    """Ctrl-C, or time is up."""


class Demo:
    """The stack, with what it is to do in ``work``."""

    INTERRUPTED = 0  #: exit code after Ctrl-C

    def __init__(self, options: argparse.Namespace, stop: threading.Event) -> None:
        self.options = options
        self.stop = stop
        self.started = time.monotonic()
        self.stack = Stack(options.run_dir, os.environ.get("BROKER_URL") or None, self.until)

    def run(self) -> int:
        """The whole demo; returns the exit code."""
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
        self._say_where_to_look(port)

    def work(self) -> int:
        """Run the day to its end, or to ours; then, with no limit of time, leave everything up until Ctrl-C."""
        arguments = [f"--date={self.options.date}", f"--speed={self._speed():.6g}"]
        replay = self.stack.manage("replay", "replay_flights", *arguments, to_log=False)
        try:
            self.until(lambda: replay.popen.poll() is not None, "replay", math.inf)
        except Interrupted:
            return _end_early(replay)
        self.stack.processes.stop("replay")
        if replay.popen.returncode:
            return 1
        if self.options.seconds is None:
            print("\ndemo: the day is over; everything stays up until Ctrl-C", flush=True)
            self.until(lambda: False, "Ctrl-C", math.inf)
        return 0

    def _speed(self) -> float:
        """As asked; with a limit of time, such that the day fits into what is left of it."""
        if self.options.seconds is None:
            return self.options.speed
        left_s = self.options.seconds - (time.monotonic() - self.started) - REPLAY_START_S - END_S
        return day_length_ms(self.options.date) / 1000 / max(left_s, MIN_DAY_S)

    def until(self, reached: Callable[[], bool], what: str, seconds: float) -> None:
        """Wait until ``reached``. Raises Interrupted on a signal, DemoError on a crash or after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            crashed = self.stack.processes.ended()  # asked first: what we wait for may be an end
            if reached():
                return
            if crashed is not None:
                raise DemoError(f"{crashed.name} ended with {crashed.popen.returncode}:\n{crashed.tail()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{what} was not ready after {seconds:g} s; see {self.options.run_dir}")
            limit = self.options.seconds or math.inf
            if self.stop.wait(POLL_S) or time.monotonic() - self.started > limit:
                raise Interrupted

    def _say_where_to_look(self, port: int) -> None:
        run_dir = _short(self.options.run_dir)
        celery = _short(Path(os.path.abspath(sys.executable)).with_name("celery"))
        wheel = f"{celery} --workdir {_short(PROJECT)} -A config wheel status"
        lines = {
            "board": f"http://127.0.0.1:{port}/",
            "admin": f"http://127.0.0.1:{port}/admin/django_wheel/wheel/  login {LOGIN}, password {PASSWORD}",
            "wheel": wheel if self.options.run_dir == DEFAULT_RUN_DIR else f"RUN_DIR={run_dir} {wheel}",
            "broker": maybe_sanitize_url(self.stack.broker_url),
            "logs": f"{run_dir}/{{beat,worker,web}}.log",
        }
        print("\nWhere to look", *(f"  {name:<7} {text}" for name, text in lines.items()), "", sep="\n", flush=True)


def _end_early(replay: Child) -> int:
    """Let the replay print the summary of the moment."""
    replay.popen.send_signal(signal.SIGINT)
    try:
        return 1 if replay.popen.wait(SUMMARY_S) else 0
    except subprocess.TimeoutExpired:
        print(f"demo: the replay gave no summary within {SUMMARY_S} s", file=sys.stderr)
        return 1


def _web_port(wanted: int | None) -> int:
    if wanted is None:
        return next((port for port in range(8000, 8010) if broker.is_free(port)), None) or broker.free_port()
    if not broker.is_free(wanted):
        raise DemoError(f"port {wanted} is in use; name another: make demo PORT={wanted + 1}")
    return wanted


def _short(path: Path) -> str:
    """As seen from the folder above the project, from which ``make demo`` is run."""
    return str(path.relative_to(PROJECT.parent) if path.is_relative_to(PROJECT.parent) else path)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--seconds", type=float, help="end by itself after so many; the day is made to fit")
    parser.add_argument("--date", type=date.fromisoformat, default=date(2013, 7, 10), help="a day of 2013")
    parser.add_argument("--speed", type=float, default=600.0, help="how fast the day passes, without --seconds")
    parser.add_argument("--port", type=int, help="of the board")
    parser.add_argument("--run-dir", type=Path, default=DEFAULT_RUN_DIR, help="where all files of the run go")
    options = parser.parse_args(argv)
    options.run_dir = options.run_dir.resolve()
    if options.seconds is not None and options.seconds < MIN_SECONDS:
        parser.error(f"seconds must be at least {MIN_SECONDS}, got {options.seconds:g}")
    return options


def main(argv: Sequence[str]) -> int:
    return run(Demo, _options(argv))


def run(demo: type[Demo], options: argparse.Namespace) -> int:
    """A demo until its end, or a signal."""
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
