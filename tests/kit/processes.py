"""The process of a test: started, waited for, suspended, ended or killed; what it printed is shown when a test fails.

::

    process = Process([sys.executable, "-m", "celery", ...], log=folder / "beat.log")
    process.wait_for("beat: Starting")          until it has printed that; fails at once when it ends before
    process.suspend(); process.resume()         SIGSTOP, SIGCONT: it is there and does nothing
    process.terminate()                         as an operator does: SIGTERM, and wait; returns its exit code
    process.kill()                              kill -9, of itself and of all that it started
    code, printed = process.end()               wait until it ends by itself

Every process that the suites leave running while they look is one of these. Each has a session of its own, so that
Ctrl-C is for the tests, and so that ``kill`` reaches its children. ``tests/conftest.py`` adds the logs to the report of
a failed test and kills what is left at the end of the session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.kit import warm
from tests.kit.patience import PATIENCE_S, patience, wait_until

#: The project's top folder: ``python -m tests.…`` is found from here.
ROOT = Path(__file__).parents[2]

#: Characters of a log that a failure shows.
TAIL = 3_000

#: The first word of a command that is forked from a process which has imported Celery already: see ``tests.kit.warm``.
WARM = "celery"

_started: list[Process] = []


class Process:
    """One program and what it starts.

    Args:
        log: file for what it prints, both streams; a name that is there is continued.
        environment: variables added to those of the tests.
        stdin: it reads what ``tell`` writes.
        options: those of ``subprocess.Popen``, as ``user``.
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
        if command[0] == WARM:
            self._popen = warm.start([str(part) for part in command[1:]], log, folder, variables)
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

    # -- its words -----------------------------------------------------------------------------------

    def said(self) -> str:
        """Return the output of the process so far."""
        with self.log.open("rb") as file:
            file.seek(self._begins_at)
            return file.read().decode(errors="replace")

    def lines(self) -> list[str]:
        """The whole lines of it."""
        return [line.rstrip("\r\n") for line in self.said().splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, text: str, times: int = 1, seconds: float = PATIENCE_S) -> None:
        """Until it has printed a text so often."""
        wait_until(lambda: self.said().count(text) >= times or not self.is_alive(), f"{self} prints {text!r}", seconds)
        assert self.said().count(text) >= times, f"{self} ended without printing {text!r}:\n{self.said()[-TAIL:]}"

    def tell(self, text: str = "") -> None:
        """A line for its standard input."""
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
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self, seconds: float = PATIENCE_S) -> tuple[int, str]:
        """Wait until it ends by itself; its exit code and what it printed."""
        wait_until(lambda: not self.is_alive(), f"{self} ends", seconds)
        self.close_stdin()
        return self._popen.returncode, self.said()

    def terminate(self) -> int:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGTERM)
            self.resume()  # one that is suspended does not see it
        return self.end()[0]

    def kill(self) -> None:
        """Nothing of it is left when this returns. Does nothing to a process that has ended."""
        if self._popen.returncode is None:  # not yet waited for, so its number is nobody else's
            family = self.family()
            for process in family:  # the first first, which would start others anew
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._popen.wait(patience())
            psutil.wait_procs(family[1:], patience())
        self.close_stdin()

    def family(self) -> list[psutil.Process]:
        """Itself and all that it started, in sessions of their own as well."""
        try:
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def __str__(self) -> str:
        return f"{self.log.stem} (process {self.pid})"

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def python(log: Path, *arguments: str, **options: Any) -> Process:
    """``python <arguments>`` in the project's folder."""
    return Process([sys.executable, *arguments], log, **{"folder": ROOT, **options})


def last_words() -> Iterator[tuple[str, str]]:
    """Name and end of the log of each process that the tests under way have started."""
    for process in _started:
        if process.log.exists() and (said := process.said().strip()):
            yield str(process), said[-TAIL:]


def forget_ended() -> None:
    """From now on only those count that still run: a module's own, for its next test."""
    _started[:] = [process for process in _started if process.is_alive()]


def kill_all() -> None:
    """Kill the processes that a failed fixture left."""
    for process in _started:
        process.kill()
    _started.clear()
    warm.close()
