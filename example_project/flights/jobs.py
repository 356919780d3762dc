"""Jobs of the data pipeline, one after the other in one Spark, each by the command line that a user would type.

Spark starts with the first job and keeps running, which saves the others five to fifteen seconds. Each step prints a
line when it begins, the steps of a job as it reports them, and its result at the end.
"""

import io
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import click
from django.core.management.base import CommandError
from kombu.utils.url import maybe_sanitize_url

from celery_wheel.pipeline.cli import main

#: In a Java that lives for two minutes the optimising compilers do not pay: they would use one of two cores.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

ALL, FIRST, LAST = slice(None), slice(4), slice(-1, None)


def prepare(folder: Path) -> None:
    """Set up the environment of Spark's Java: for a short life, with its temporary files in ``folder``."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = os.environ["SPARK_LOCAL_DIRS"] = str(temporary)
    os.environ.setdefault("JDK_JAVA_OPTIONS", f'{SHORT_LIVED} "-Djava.io.tmpdir={temporary}"')


class StepLines(io.StringIO):
    """A stream for the progress of a job, which prints it line by line beside the other output."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def write(self, text: str) -> int:
        super().write(text)  # refuses bytes, by which click recognises a stream of text
        for line in filter(None, text.splitlines()):
            print(f"          {line}", file=self._out, flush=True)
        return len(text)


class JobRunner:
    """Runs jobs, each with a results folder in ``folder``; printed paths are relative to ``here``."""

    def __init__(self, folder: Path, store: str, here: Path) -> None:
        self.folder = folder
        self.store = store
        self._here = f"{here}{os.sep}"

    def run(self, job: str, *options: object, output: str | None = None, lines: slice = ALL) -> dict[str, Any]:
        """Run a job, print the ``lines`` of its summary, and return the summary."""
        arguments = [job, *map(str, options), "--output", str(self.folder / (output or job))]
        self.print("$ " + shlex.join(["celery-wheel-pipeline", *arguments]))
        with self.timed() as output_lines:
            summary = self._summary(arguments)
            output_lines += summary["words"][lines]
        return summary

    @contextmanager
    def timed(self, step: str | None = None) -> Iterator[list[str]]:
        """Print the step, and after the block the lines that it adds to the list, with the time that it took."""
        began, lines = time.monotonic(), list[str]()
        if step is not None:
            self.print(f"- {step}")
        yield lines
        first, *others = lines
        self.print(f"{time.monotonic() - began:6.1f} s  {first}", *(f"          {line}" for line in others), "")

    def print(self, *lines: str) -> None:
        text = "\n".join(lines).replace(self.store, maybe_sanitize_url(self.store)).replace(self._here, "")
        print(text, flush=True)

    def _summary(self, arguments: list[str]) -> dict[str, Any]:
        stdout, steps = io.StringIO(), StepLines(sys.stdout)
        with redirect_stderr(steps), redirect_stdout(stdout):
            try:
                main.main([*arguments, "--json"], prog_name="celery-wheel-pipeline", standalone_mode=False)
            except click.ClickException as error:
                raise CommandError(f"{arguments[0]}: {error.format_message()}", returncode=1) from error
        summary: dict[str, Any] = json.loads(stdout.getvalue())
        return summary
