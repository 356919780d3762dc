"""Jobs of the pipeline as tasks of Airflow and as assets of Dagster, each in a process of its own.

The process may belong to another Python, or be a ``spark-submit``: the environment of the orchestrator needs neither
Spark nor Java. A job that found something (``reconcile``) fails for good, and one that could not run fails so that the
orchestrator tries it again. A task that is stopped stops its job, as Ctrl-C does. A repeated job is safe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from celery_wheel.errors import WheelError

#: The command of this Python.
COMMAND = (sys.executable, "-m", "celery_wheel.pipeline")


class JobFailed(WheelError, RuntimeError):
    """A job ended without a result, or (``summary``) with findings."""

    def __init__(self, message: str, summary: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.summary = summary


@dataclass
class JobProcess:
    """A job that runs once."""

    job: str  #: its name: "archive"
    arguments: Sequence[str] = ()  #: as on the command line: ["--store", "postgresql://…", "--output", "s3a://…"]
    _: KW_ONLY
    #: Runs the jobs: a Python with ``-m celery_wheel.pipeline``, or ``spark-submit`` with its options and the path of
    #: ``celery_wheel/pipeline/__main__.py``.
    command: Sequence[str] = COMMAND
    environment: Mapping[str, str] | None = None  #: variables beside those of this process
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self, progress: Callable[[str], None]) -> dict[str, Any]:
        """Return the summary of the job; each line of its stderr goes to ``progress``. Raises JobFailed."""
        command = [*self.command, self.job, "--json", *self.arguments]
        try:
            self._process = process = subprocess.Popen(  # noqa: S603 - the command is the caller's own
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **(self.environment or {})},
                start_new_session=True,  # a stop reaches Java too, which spark-submit starts
            )
        except OSError as error:
            raise JobFailed(f"the job {self.job} did not start: {error}; the command is {command}") from None
        assert process.stderr is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        last = ""
        with process:
            try:
                # Stdout has one line, at the end, so it fills no pipe while stderr is read.
                for line in map(str.strip, process.stderr):
                    last = line or last
                    progress(line)
                output = process.stdout.read()
            except BaseException:  # the orchestrator interrupts its task
                self.stop()
                process.communicate()  # the job tidies up, and tells of it, for as long as it takes
                raise
        summary = _summary(output)
        if process.returncode == 0 and summary is not None:
            return summary
        if summary is not None:
            raise JobFailed(f"the job {self.job} has findings: {'; '.join(summary['words'])}", summary)
        raise JobFailed(f"the job {self.job} ended with exit code {process.returncode}: {last}")

    def stop(self) -> None:
        """Interrupt the job, as Ctrl-C does."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)


def _summary(output: str) -> dict[str, Any] | None:
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) and "words" in found else None
