"""Starts processes and leaves none behind.

Each process leads a group of its own and writes to its own log file. Stopping sends the leader SIGTERM first, because
a worker must end its children itself, and then kills the rest of the group. On Linux the kernel also stops a leader
whose starter died, so that a killed demo leaves nothing behind.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

STOP_S = 30.0  #: seconds that a process may take to end after SIGTERM
POLL_S = 0.05
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1  #: from <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(slots=True)
class Child:
    name: str
    popen: subprocess.Popen[bytes]
    log: Path | None

    def tail(self) -> str:
        """Return the last lines of the process's log."""
        if self.log is None:
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])


class Processes:
    """The processes of one run; a name belongs to one running process."""

    def __init__(self, folder: Path, cwd: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.cwd = cwd
        self.env = env
        self._children: dict[str, Child] = {}

    def start(self, name: str, argv: Sequence[str | Path], *, to_log: bool = True) -> Child:
        """Start ``argv``; its output goes to ``<name>.log``, or to this process's own output."""
        log = self.folder / f"{name}.log" if to_log else None
        if log is None:
            child = Child(name, self._spawn(argv, None), None)
        else:
            with log.open("ab") as stream:
                child = Child(name, self._spawn(argv, stream), log)
        self._children[name] = child
        return child

    def ended(self) -> Child | None:
        """Return a process that is no longer running; None while all run."""
        return next((child for child in self._children.values() if child.popen.poll() is not None), None)

    def kill(self, name: str) -> None:
        """End a process and its group as a crash would: ``kill -9``."""
        child = self._children.pop(name)
        _signal_group(child, signal.SIGKILL)
        child.popen.wait()

    def stop(self, *names: str) -> None:
        """Stop processes together: SIGTERM to each, a wait, then SIGKILL to what is left of their groups."""
        children = [self._children.pop(name) for name in names]
        for child in children:
            if child.popen.poll() is None:
                child.popen.terminate()
        deadline = time.monotonic() + STOP_S
        while any(child.popen.poll() is None for child in children) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for child in children:
            _signal_group(child, signal.SIGKILL)
            child.popen.wait()

    @property
    def names(self) -> list[str]:
        return list(self._children)

    def _spawn(self, argv: Sequence[str | Path], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  the arguments are this project's own
            argv,
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_stop_with_starter,
        )


def _stop_with_starter() -> None:
    if _LIBC is not None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _signal_group(child: Child, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the whole group may have ended
        os.killpg(child.popen.pid, signum)
