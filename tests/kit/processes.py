"""The process of a test: started, awaited, suspended, ended or killed; a failed test shows its output.

::

    process = Process([sys.executable, "-m", "celery", ...], log=folder / "beat.log")
    process.wait_for("beat: Starting")          until it has printed that text; fails at once when it ends first
    process.suspend(); process.resume()         SIGSTOP, SIGCONT: it lives and does nothing
    process.terminate()                         as an operator does: SIGTERM, and wait; returns its exit code
    process.kill()                              kill -9, of the process and of all its children
    code, printed = process.end()               wait until it ends by itself

Every process that the suites keep running during a test is a ``Process``. Each has a session of its own, so that
Ctrl-C is for the tests, and so that ``kill`` reaches its children. ``tests/conftest.py`` adds the logs to the report of
a failed test and kills what is left at the end of the session.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tests.kit import warm
from tests.kit.patience import PATIENCE_S, patience, wait_until

#: The project's top folder: ``python -m tests.…`` is found from here.
ROOT = Path(__file__).parents[2]

#: Characters of a log that a failure shows.
TAIL = 3_000

_started: list[Process] = []


class Process:
    """One program and its children.

    Args:
        log: file for its output, both streams; an existing file is continued.
        environment: variables added to those of the tests.
        command: its first word may be a kind of ``tests.kit.warm`` in place of the path of Python.
        stdin: whether it reads the lines that ``tell`` writes.
        options: arguments of ``subprocess.Popen``, for example ``user``.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        stdin: bool = False,
        **options: Any,
    ) -> None:
        self.log = log
        self._begins_at = log.stat().st_size if log.exists() else 0
        variables, folder = {**os.environ, **(environment or {})}, folder or log.parent
        log.touch()
        self._popen: Any
        if command[0] in warm.MODULES:
            kind, *arguments = map(str, command)
            self._popen = warm.start(kind, arguments, log, folder, variables)
        else:
            with log.open("ab") as out:
                pipe = subprocess.PIPE if stdin else None
                streams: Any = {"stdin": pipe, "stdout": out, "stderr": out}
                self._popen = subprocess.Popen(
                    command, env=variables, cwd=folder, start_new_session=True, **streams, **options
                )
        _started.append(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def memory(self) -> tuple[int, int]:
        """Return the highest and the present memory of the process itself, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        highest, present = (int(size) * 1_024 for size in re.findall(r"Vm(?:HWM|RSS):\s+(\d+) kB", status))
        return highest, present

    # -- its words -----------------------------------------------------------------------------------

    def said(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._begins_at)
            return file.read().decode(errors="replace")

    def lines(self) -> list[str]:
        return [line.rstrip("\r\n") for line in self.said().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, text: str, times: int = 1, seconds: float = PATIENCE_S) -> None:
        wait_until(lambda: self.said().count(text) >= times or not self.is_alive(), f"{self} prints {text!r}", seconds)
        assert self.said().count(text) >= times, f"{self} ended without printing {text!r}:\n{self.said()[-TAIL:]}"

    def tell(self, text: str = "") -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{text}\n".encode())
        self._popen.stdin.flush()

    def close_stdin(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    # -- its end -------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def suspend(self) -> None:
        """Suspend the process; returns when it does nothing any more."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED, f"{self} is suspended")

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self, seconds: float = PATIENCE_S) -> tuple[int, str]:
        """Wait until the process ends by itself; returns its exit code and its output."""
        wait_until(lambda: not self.is_alive(), f"{self} ends", seconds)
        self.close_stdin()
        return self._popen.returncode, self.said()

    def terminate(self) -> int:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGTERM)
            self.resume()  # a suspended process does not handle the signal
        return self.end()[0]

    def kill(self) -> None:
        """Kill the process and its children, and wait for their end. Does nothing to a process that has ended."""
        if self._popen.returncode is None:  # not yet waited for, so no other process has its number
            family = self.family()
            for process in family:  # the parent first, which would start children anew
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._popen.wait(patience())
            psutil.wait_procs(family[1:], patience())
        self.close_stdin()

    def family(self) -> list[psutil.Process]:
        """Return the process and its children, including those in sessions of their own."""
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __str__(self) -> str:
        return f"{self.log.stem} (process {self.pid})"

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def python(log: Path, *arguments: str, kind: str = sys.executable, **options: Any) -> Process:
    """Start ``python <arguments>`` in the project's folder; see ``tests.kit.warm`` for other kinds of Python."""
    return Process([kind, *arguments], log, **{"folder": ROOT, **options})


def last_words() -> Iterator[tuple[str, str]]:
    """Return the name and the end of the log of each process that the current tests have started."""
    for process in _started:
        if process.log.exists() and (said := process.said().strip()):
            yield str(process), said[-TAIL:]


def forget_ended() -> None:
    _started[:] = [process for process in _started if process.is_alive()]


def kill_all() -> None:
    """Kill the processes that a failed fixture left."""
    for process in _started:
        process.kill()
    _started.clear()
    warm.close()


def run(
    folder: Path, variables: Mapping[str, str], *arguments: str, cold: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``python <arguments>`` to its end.

    Args:
        cold: the process imports everything itself, instead of a fork of ``tests.kit.warm``.
    """
    command, variables = [sys.executable, *arguments], {**os.environ, **variables}
    if cold:
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    with tempfile.TemporaryDirectory() as logs:
        out, errors = Path(logs) / "out", Path(logs) / "errors"
        code = warm.start(warm.SITE, arguments, out, folder, variables, errors).wait(patience())
        return subprocess.CompletedProcess(command, code, out.read_text(), errors.read_text())
